"""Which tokens a drafter's shortened head covers: those that replies need most often, ranked without any corpus.

The order is: the ids that end a reply and the tokens that were added to the vocabulary (a call or an end could not be
drafted without them); what a `shortlist.json` says that somebody measured; single bytes; then byte-pair merges by an
estimate of how often their tokens are left in text; then all other ids.

The estimate: merges come in the order of the pairs' counts, taken to fall as rank^−1.5. A token loses what later merges take
into longer tokens: " th" is an early merge, but seldom left alone. This covers more of a model's replies than the merges' own
order does (docs/shortlist.md has the figures); counts over what Python's own sources and documents say cover less.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from paceline.core.errors import CheckpointError
from paceline.text.tokenizer import Tokenizer

RANKING_FILE = "shortlist.json"
_FALL = 1.5
# Training stops, text does not: something is left of every token.
_LEAST_LEFT = 0.1


def required_ids(tokenizer: Tokenizer) -> list[int]:
    """What every shortlist holds: the ids that end a reply, and added tokens."""
    return sorted({*tokenizer.generation.eos_ids, *tokenizer.added_ids})


def rank_tokens(tokenizer: Tokenizer, measured: Sequence[int] = ()) -> list[int]:
    """All ids below `vocab_size`, each once, the most needed first. `measured` are ids by how often replies had them."""
    every = range(tokenizer.vocab_size)
    single = [i for i in every if len(tokenizer.token_bytes(i)) == 1]
    return list(dict.fromkeys((*required_ids(tokenizer), *measured, *single, *_by_merges(tokenizer), *every)))


def read_ranking(file: Path, vocab: int) -> list[int]:
    """A `shortlist.json`: a list of token ids below `vocab`, the most frequent first."""
    try:
        ids = msgspec.json.decode(file.read_bytes(), type=list[int])
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"{file}: {error}; write a JSON list of token ids, the most frequent first") from error
    wrong = [i for i in ids if not 0 <= i < vocab]
    if wrong:
        raise CheckpointError(
            f"{file}: token id {wrong[0]}: this model's ids end at {vocab - 1}; write a list for this one"
        )
    return ids


def _by_merges(tokenizer: Tokenizer) -> list[int]:
    made: dict[int, float] = {}
    taken: defaultdict[int, float] = defaultdict(float)
    for rank, (left, right, joined) in enumerate(tokenizer.merges(), 1):
        count = rank**-_FALL
        made.setdefault(joined, count)
        for part in (left, right):
            taken[part] += count
    left_over = {i: max(count - taken[i], _LEAST_LEFT * count) for i, count in made.items()}
    return sorted(made, key=lambda i: -left_over[i])
