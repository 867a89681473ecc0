"""The ranking that shortened draft heads are cut from."""

import json
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Codec
from tokenizers import decoders, models

import paceline
from paceline.core.errors import CheckpointError
from paceline.text.shortlist import rank_tokens, read_ranking, required_ids
from paceline.text.tokenizer import Generation, Tokenizer
from paceline.train.corpus import held_out
from paceline.train.workloads import MAKERS


def token(tokenizer: Tokenizer, text: str) -> int:
    (found,) = tokenizer.encode(text)
    return found


def test_every_id_stands_there_once(tokenizer: Tokenizer) -> None:
    assert sorted(rank_tokens(tokenizer)) == list(range(tokenizer.vocab_size))
    assert sorted(rank_tokens(tokenizer, [300, 7, 300])) == list(range(tokenizer.vocab_size))


def test_ends_and_added_tokens_come_first_then_what_was_measured_then_bytes(tokenizer: Tokenizer) -> None:
    """Also added tokens that are ordinary text for the tokenizer, as those of thinking and of calls are in many models."""
    required = required_ids(tokenizer)
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
    assert required == sorted(token(tokenizer, name) for name in names)
    ranked = rank_tokens(tokenizer, [350, 340, required[0]])
    assert ranked[: len(required)] == required
    assert ranked[len(required) : len(required) + 2] == [350, 340]
    following = ranked[len(required) + 2 :][:256]
    assert {tokenizer.token_bytes(i) for i in following} == {bytes([b]) for b in range(256)}


def test_an_end_that_is_an_ordinary_token_is_required(tokenizer: Tokenizer) -> None:
    ending = Tokenizer(tokenizer._codec, Generation(eos_ids=[token(tokenizer, "a")]))
    assert token(tokenizer, "a") in required_ids(ending)


def test_parts_that_longer_tokens_used_up_come_late() -> None:
    """Four later merges take "th": what is left of it is less than of "the", the first of these."""
    alphabet = {chr(c): i for i, c in enumerate(b"abdehiot")}
    merges = [("t", "h"), ("th", "e"), ("th", "a"), ("th", "i"), ("th", "o"), ("b", "e"), ("be", "d")]
    vocab = alphabet | {left + right: len(alphabet) + i for i, (left, right) in enumerate(merges)}
    codec = Codec(models.BPE(vocab=vocab, merges=merges))
    codec.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer(codec, Generation())
    assert [tokenizer.token_bytes(joined) for _, _, joined in tokenizer.merges()] == [
        "".join(pair).encode() for pair in merges
    ]
    ranked = [tokenizer.token_bytes(i) for i in rank_tokens(tokenizer)]
    assert ranked[8:] == [b"the", b"th", b"tha", b"thi", b"tho", b"bed", b"be"]


def test_it_covers_more_replies_than_the_order_of_merges() -> None:
    """A quarter of the embedded model's vocabulary, on replies of the kinds that it gives."""
    source = Path(paceline.__file__).parent / "embedded" / "tokenizer.json"
    tokenizer = Tokenizer(Codec.from_file(str(source)), Generation(eos_ids=[2]))
    counts = Counter(i for kind in MAKERS for chat in held_out(kind, 8) for i in tokenizer.encode(chat.answer))
    by_merges = [joined for _, _, joined in tokenizer.merges()]
    single = [i for i in range(tokenizer.vocab_size) if len(tokenizer.token_bytes(i)) == 1]

    def covered(ranked: list[int]) -> float:
        return sum(counts[i] for i in ranked[: tokenizer.vocab_size // 4]) / counts.total()

    plain = covered(list(dict.fromkeys((*required_ids(tokenizer), *single, *by_merges))))
    assert covered(rank_tokens(tokenizer)) > plain + 0.04
    assert covered(rank_tokens(tokenizer, [i for i, _ in counts.most_common()])) > 0.97


@pytest.mark.parametrize(
    "content,words",
    [("[1, 2, 414]", "token id 414"), ("[-1]", "token id -1"), ('{"1": 5}', "list of token ids"), ("[1,", "list of token ids"),
     ('["a"]', "list of token ids"), ("[1.5]", "list of token ids")],
)  # fmt: skip
def test_a_list_that_cannot_be_meant(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "shortlist.json"
    file.write_text(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_ranking(file, 414)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_a_list_is_read_in_its_order(tmp_path: Path) -> None:
    (tmp_path / "shortlist.json").write_text(json.dumps([9, 3, 413]))
    assert read_ranking(tmp_path / "shortlist.json", 414) == [9, 3, 413]
