"""The model that the package ships: its drafters really draft, and change nothing but the number of rounds."""

import pytest

from paceline.build import EngineOptions, configure, local_engine, open_text
from paceline.core.messages import Event, Tally, Tokens
from paceline.core.request import Request
from tests.kit.embedded import FOLDER, PROMPTS
from tests.kit.run import sampling

# Tokens per round pooled over these prompts, which the generators of the training corpus did not write.
LEAST = {"mtp": (3, 2.6), "dflash": (7, 2.5), "dflash2": (7, 3.5)}


def replies(drafter: str, k: int, temperature: float) -> tuple[list[list[int]], float]:
    """The token ids for each prompt, and the pooled tokens per round."""
    config = configure(EngineOptions(model="embedded", weights="bf16", drafter=drafter, draft_tokens=k, threads=1))
    tokenizer, template, _ = open_text(config)
    ids: list[list[int]] = [[] for _ in PROMPTS]
    tallies = [Tally() for _ in PROMPTS]

    def take(event: Event) -> None:
        if isinstance(event, Tokens):
            ids[event.id] += event.ids
            tallies[event.id].add(len(event.ids), event.proposed, event.accepted)

    engine = local_engine(config, take)
    for i, text in enumerate(PROMPTS):
        prompt = tokenizer.encode(template.render([{"role": "user", "content": text}], {}))
        params = sampling(temperature=temperature, top_p=0.95, top_k=20, presence_penalty=1.0 if temperature else 0.0)
        stops = tokenizer.generation.eos_ids
        engine.submit(Request(id=i, prompt=prompt, max_tokens=96, sampling=params, stop_ids=stops))
    while engine.busy:
        engine.step()
    counts = [tally.at(len(out)) for tally, out in zip(tallies, ids, strict=True)]
    return ids, 1 + sum(c.accepted for c in counts) / max(sum(c.rounds for c in counts), 1)


@pytest.fixture(scope="module")
def plain() -> dict[float, list[list[int]]]:
    return {temperature: replies("none", 0, temperature)[0] for temperature in (0.0, 0.6)}


@pytest.mark.parametrize("drafter", LEAST)
def test_drafters_draft_and_change_nothing(drafter: str, plain: dict[float, list[list[int]]]) -> None:
    k, least = LEAST[drafter]
    ids, per_round = replies(drafter, k, 0.0)
    assert ids == plain[0.0]
    assert per_round >= least
    assert replies(drafter, k, 0.6)[0] == plain[0.6]


def test_it_is_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) <= 24 * 10**6
