"""The draft rules' benchmark: its sums against brute force, its windows against the engine, its page against its result."""

import json
from itertools import product

import msgspec
import pytest
import torch

from benchmarks.agreement import coupled, overlap, tokens_per_round
from benchmarks.draft_rules import PAIRS, RESULTS, RULES, SETTINGS, Study, expected, proposal, requests, tables
from benchmarks.windows import Place, Recorder, Reply, replies
from paceline.build import EngineOptions, configure
from paceline.core.spec import DrafterSpec
from paceline.drafters.base import Observed, TokensOnly, Want
from paceline.models import MODELS
from paceline.sampling.draft import DraftView
from paceline.sampling.filters import Sampler, pick
from paceline.sampling.noise import gumbel, key
from tests.code.modules import ROOT
from tests.drafters.play import make_target
from tests.drafters.test_draws import limits
from tests.kit import models
from tests.kit.run import sampling

VOCAB, TOKENS = 7, 40


def distribution(seed: int, zeros: list[int]) -> torch.Tensor:
    p = torch.rand(VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 2
    p[zeros] = 0
    return p / p.sum()


@pytest.mark.parametrize("zeros", [[], [0, 3], [1, 2, 4]])
def test_sums_over_all_noise_are_what_drawing_gives(zeros: list[int]) -> None:
    p, q, ids = distribution(1, [5]), distribution(2, zeros), torch.arange(VOCAB)
    direct = [
        1 / sum(max(float(p[j] / p[i]), float(q[j] / q[i])) for j in range(VOCAB)) if p[i] > 0 and q[i] > 0 else 0.0
        for i in range(VOCAB)
    ]
    assert coupled(p, q).tolist() == pytest.approx(direct)
    draws = 4000
    counts = torch.zeros(VOCAB)
    for seed in range(draws):
        noise = gumbel(key(seed, 0), ids)
        a, b = int((p.log() + noise).argmax()), int((q.log() + noise).argmax())
        counts[a] += a == b
    assert (counts / draws).tolist() == pytest.approx(direct, abs=0.025)
    assert coupled(p, p).tolist() == pytest.approx(p.tolist())


def test_the_optimum_is_one_minus_the_total_variation() -> None:
    """Over every set of tokens, the largest difference of the two probabilities; no shared draw agrees more often."""
    p, q = distribution(3, [2]), distribution(4, [])
    total_variation = max(
        abs(sum(float(p[i] - q[i]) for i in range(VOCAB) if chosen[i])) for chosen in product((0, 1), repeat=VOCAB)
    )
    assert overlap(p, q) == pytest.approx(1 - total_variation)
    assert overlap(p, q) > float(coupled(p, q).sum()) > overlap(p, q) / (1 + total_variation) - 1e-12


def test_a_chain_of_rounds_counts_every_way_through() -> None:
    windows, outputs = [[0.9, 0.5], [0.2, 0.7], [0.6], []], 6

    def ways(start: int) -> tuple[float, float]:
        if start >= outputs:
            return 0.0, 0.0
        chances = windows[start - 1] if start <= len(windows) else []
        rounds, accepted = 1.0, 0.0
        for hits in product((True, False), repeat=len(chances)):
            weight = 1.0
            for hit, chance in zip(hits, chances, strict=True):
                weight *= chance if hit else 1 - chance
            n = (*hits, False).index(False)
            after = ways(start + n + 1)
            rounds, accepted = rounds + weight * after[0], accepted + weight * (n + after[1])
        return rounds, accepted

    assert tokens_per_round(windows, outputs) == pytest.approx(ways(1))
    assert tokens_per_round([[1.0, 1.0, 0.0], [0.0], [0.0], [1.0]], 6) == (2, 3)
    assert tokens_per_round([], 1) == (0, 0)


class Echo(TokensOnly):
    """Drafts that depend on the token before: its logits prefer the id that follows it."""

    spec = DrafterSpec()

    def open(self, slot: int, tokens: list[int], filled: int) -> None: ...

    def close(self, slot: int) -> None: ...

    def observe(self, rows: list[Observed]) -> None: ...

    def propose(self, rows: list[Want]) -> list[list[int]]:
        drafts: list[int] = []
        for _ in range(rows[0].k):
            before = drafts[-1] if drafts else rows[0].anchor
            drafts.append(rows[0].view.draw(torch.eye(VOCAB)[before], drafts))
        return [drafts]


def test_drafters_are_asked_as_if_every_draft_had_been_right() -> None:
    spec = MODELS.get("qwen3_5_text").spec(models.hybrid_config().to_dict(), "hybrid")
    recorder = Recorder(Echo(), make_target(spec, 3))
    recorder.truth = [6, 4, 0, 5, 2]
    view = DraftView(Sampler(sampling(), [], VOCAB), limits(), 1)
    assert recorder.propose([Want(0, 3, 6, 10, view, [])]) == [[]], (
        "nothing is proposed, so every token starts a window"
    )
    view = DraftView(Sampler(sampling(), [], VOCAB), limits(), 3)
    recorder.propose([Want(0, 3, 0, 12, view, [])])
    assert [[int(line.argmax()) for line, _ in window] for window in recorder.windows] == [[6, 4, 0], [0, 5]]


@pytest.fixture(scope="module", params=["mtp", "dflash2"])
def reply(request: pytest.FixtureRequest) -> Reply:
    drafter = request.param
    options = EngineOptions(
        model="embedded",
        weights="bf16",
        drafter=drafter,
        draft_tokens=PAIRS[drafter],
        max_concurrency=1,
        max_context=1024,
        threads=1,
    )
    config = configure(options)
    story = msgspec.structs.replace(requests(config, "standard T=1.0")[-1], max_tokens=TOKENS)
    return next(replies(config, [story]))


@torch.inference_mode()
def test_the_products_rounds_are_those_of_the_windows(reply: Reply) -> None:
    """The drafts that the benchmark draws at recorded logits are the ones that the engine proposed and accepted."""
    study = Study()
    study.add(reply)
    assert study.chains["penalised"] == study.chains["engine"] == [(reply.rounds, reply.accepted)]
    assert reply.accepted > 10
    assert len(reply.windows) == TOKENS - 2, "the first token comes with the prompt, the last needs no draft"
    summary = study.summary()
    assert summary["positions"] == sum(map(len, reply.windows))
    assert summary["draft temperature"]["1"] == pytest.approx(summary["expected"]["penalised"], abs=0.1)


def test_the_sums_are_about_what_the_product_draws() -> None:
    """The distribution called penalised is the one that the product's draw picks from; sharing noise makes it agree more."""
    params = sampling(temperature=0.8, top_k=12, top_p=0.95, presence_penalty=1.5, frequency_penalty=1.0, seed=5)
    vocab, drafted, earned = 40, [7, 3, 7], []
    for seed in range(60):
        noise = torch.Generator().manual_seed(seed)
        line, error = torch.randn(2, vocab, generator=noise) * torch.tensor([[1.5], [0.5]])
        line[drafted] += 2
        sampler = Sampler(params, [], vocab)
        sampler.penalties.add(9)
        view, ids = DraftView(sampler, limits(), seed), torch.arange(vocab)
        place = Place(torch.softmax(line.double(), 0), 0, (line + error, ids), view, drafted)
        values, kept = proposal(place, place.line, True)
        assert pick(values, kept, params.seed, seed + len(drafted)) == view.draw(place.line[0], drafted, ids)
        sums = expected(place, place.line)
        assert sums["independent"] < sums["shared"] <= sums["optimum of shared"]
        assert sums["penalised"] <= sums["optimum"]
        earned.append(sums["shared"] - sums["penalised"])
    assert sum(earned) > 0, "here the target has no penalties"


@pytest.fixture(scope="module")
def published() -> dict:  # type: ignore[type-arg]
    return json.loads((RESULTS / "draft_rules.json").read_text(encoding="utf-8"))


def test_page_and_readme_show_the_result(published: dict) -> None:  # type: ignore[type-arg]
    page = (ROOT / "docs" / "draft-rules.md").read_text(encoding="utf-8")
    shown = tables(published)
    assert len(shown) == 5
    for table in shown:
        assert table in page
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for rule in ("penalised", "argmax", "independent"):
        shares = [
            100 * study["expected"][rule] / study["optimum"]
            for studies in published["drafters"].values()
            for study in studies
        ]
        assert f"{min(shares):.1f} to {max(shares):.1f} %" in readme, rule


def test_what_the_product_does_is_what_won(published: dict) -> None:  # type: ignore[type-arg]
    """`penalised` is the product's draw (the test above); no other rule is accepted more, and the optimum is near."""
    assert set(published["drafters"]) == {f"{name} K={k}" for name, k in PAIRS.items()}
    for studies in published["drafters"].values():
        assert [study["setting"] for study in studies] == list(SETTINGS)
        for study in studies:
            sums = study["expected"]
            assert max(sums[rule] for rule in RULES) <= sums["penalised"] + 0.0005
            least = 0.93 if study["setting"].endswith("0.6") else 0.87
            for measured in (study["measured"], sums):
                assert measured["penalised"] >= least * study["optimum"]
