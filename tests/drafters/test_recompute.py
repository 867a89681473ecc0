"""Every drafter's scores equal those of the formulas, whatever way the facts came in."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.drafters import dflash, dflash2, mtp
from paceline.drafters.base import Drafter, Target
from paceline.models import MODELS
from paceline.runner.drafter import CheckpointSource
from tests.drafters import oracle
from tests.drafters.play import SpyView, Truth, make_target, make_truth, play, whole_head
from tests.kit import drafter_files, models

HYBRID = models.hybrid_config()
SPEC = MODELS.get("qwen3_5_text").spec(HYBRID.to_dict(), "hybrid")
BUILD = {False: dflash.build, True: dflash2.build}

# The ids of a draft head: all that can be sampled, or a shortlist; the shortest is just above DFlash2's 16 candidates.
VOCAB = 301
SHORTLISTS = [(), tuple(range(3, VOCAB, 4)), tuple(range(7, 200, 12))]
# (prompt, chunk, accepted counts of the rounds that follow)
WAYS = [(1, 64, []), (2, 1, [0]), (30, 64, [3, 0, 1]), (70, 33, [0, 0, 7]), (64, 64, [1]), (129, 64, [2, 0])]
BLOCKS: dict[str, dict[str, Any]] = {
    "mixed": {},
    "taps": {"inner": {"target_layer_ids": [0, 3, 1]}, "head_dim": 32, "num_key_value_heads": 1},
    "window-in-block": {"sliding_window": 5, "layer_types": ["sliding_attention", "sliding_attention"]},
    "causal": {"is_causal": True, "layer_types": ["full_attention", "sliding_attention"]},
    "legacy": {"is_causal": None},
    "scaled": {
        "inner": {
            "input_embedding_scale": 0.7,
            "output_multiplier": 0.5,
            "final_logit_softcapping": 3.0,
            "causal": True,
        },
        "is_causal": False,
    },
}


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    error = (got - want).abs().max() / want.abs().max()
    assert error < 2e-4, float(error)


def check_ids(played: tuple[SpyView, list[int], int], shortlist: tuple[int, ...]) -> None:
    """What is drawn from, and so every draft, can be sampled and is on the shortlist where there is one."""
    view, drafts, _ = played
    for _, ids in view.seen:
        assert set(ids.tolist()) <= set(shortlist or range(VOCAB))
    assert set(drafts) <= set(shortlist or range(VOCAB))


def check_mtp(
    drafter: mtp.MtpDrafter, tensors: oracle.Tensors, truth: Truth, played: tuple[SpyView, list[int], int]
) -> None:
    view, drafts, at = played
    target = drafter.target
    want = oracle.mtp_logits(
        tensors, HYBRID, target.embed, whole_head(SPEC), truth.tokens[: at + 1], truth.hidden[:at], drafts
    )
    close(torch.stack([logits for logits, _ in view.seen]), want[:, target.head.ids])


def check_block(
    target: Target,
    config: dict[str, Any],
    tensors: oracle.Tensors,
    truth: Truth,
    played: tuple[SpyView, list[int], int],
) -> None:
    """The block has as many masks as the engine's K, however many drafts are wanted. A head that is a shortlist gives what
    the whole head gives for its ids."""
    view, drafts, at = played
    hidden = oracle.block_hidden(tensors, config, target.embed, truth.taps[:at], truth.tokens[at], target.draft_tokens)
    u = oracle.block_scores(config, whole_head(SPEC), hidden)
    outside = torch.ones(u.shape[1], dtype=torch.bool).index_fill(0, target.head.ids, False)
    u = u.masked_fill(outside, float("-inf"))
    if config["architectures"] == ["DFlashDraftModel"]:
        close(torch.stack([logits for logits, _ in view.seen]), u[: len(drafts), target.head.ids])
        return
    top = config["dflash_config"]["selector_top_k"]
    before = [truth.tokens[at], *drafts[:-1]]
    wanted = oracle.selector_scores(tensors, u, hidden, before, top)
    for row, (logits, ids), want in zip(u, view.seen, wanted, strict=False):
        edge = row.topk(top).values[-1]  # which of two candidates that tie here is kept is a matter of rounding
        assert all(abs(row[i] - edge) < 1e-5 for i in set(ids.tolist()) ^ set(want))
        both = [i in want for i in ids.tolist()]
        close(logits[both], torch.tensor([want[i] for i in ids[both].tolist()]))


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("k", [1, 2, 7, 15])
def test_mtp_equals_the_formulas(k: int, way: tuple[int, int, list[int]]) -> None:
    prompt, chunk, accepted = way
    tensors = drafter_files.random_tensors(drafter_files.mtp_shapes(HYBRID), offset=True)
    truth = make_truth(160, 1)
    for shortlist in SHORTLISTS:
        drafter = mtp.MtpDrafter(make_target(SPEC, k, vocab=VOCAB, shortlist=shortlist), tensors)
        played = play(drafter, 1, truth, prompt, chunk, [min(n, k) for n in accepted], k)
        check_ids(played, shortlist)
        check_mtp(drafter, tensors, truth, played)


@pytest.mark.parametrize("two", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("name", BLOCKS)
def test_block_drafters_equal_the_formulas(name: str, two: bool, tmp_path: Path) -> None:
    config = drafter_files.block_config(two, **BLOCKS[name])
    tensors = drafter_files.write_block_folder(tmp_path, config)
    ways = [(7, way) for way in WAYS] + [(1, WAYS[2]), (3, WAYS[3]), (15, WAYS[3])]
    cases = [(k, way, SHORTLISTS[0]) for k, way in ways] + [(7, WAYS[2], shortlist) for shortlist in SHORTLISTS[1:]]
    for k, (prompt, chunk, accepted), shortlist in cases:
        target = make_target(SPEC, k, vocab=VOCAB, shortlist=shortlist)
        drafter = BUILD[two](target, CheckpointSource(tmp_path))
        truth = make_truth(160, len(config["dflash_config"]["target_layer_ids"]))
        played = play(drafter, 1, truth, prompt, chunk, [min(n, k) for n in accepted], k)
        check_ids(played, shortlist)
        check_block(drafter.target, config, tensors, truth, played)


@pytest.mark.parametrize("kind", ["mtp", "v1", "v2"])
def test_slots_do_not_touch_each_other_or_their_next_request(kind: str, tmp_path: Path) -> None:
    """A long request, then another on the same slot beside a neighbour: as if each were alone, with a shorter k too."""
    k, config = 7, drafter_files.block_config(kind == "v2")
    block = drafter_files.write_block_folder(tmp_path, config)
    head = drafter_files.random_tensors(drafter_files.mtp_shapes(HYBRID), offset=True)

    def check(drafter: Drafter, truth: Truth, played: tuple[SpyView, list[int], int]) -> None:
        if isinstance(drafter, mtp.MtpDrafter):
            check_mtp(drafter, head, truth, played)
        else:
            check_block(target, config, block, truth, played)

    target = make_target(SPEC, k)
    drafter: Drafter = (
        mtp.MtpDrafter(target, head) if kind == "mtp" else BUILD[kind == "v2"](target, CheckpointSource(tmp_path))
    )
    first, second, neighbour = (make_truth(160, 2, seed=seed) for seed in (5, 6, 7))
    play(drafter, 0, first, 129, 64, [3], k)
    drafter.close(0)
    check(drafter, neighbour, play(drafter, 1, neighbour, 20, 7, [1], k))
    check(drafter, second, play(drafter, 0, second, 9, 64, [0, 2], 4))


@pytest.mark.parametrize("kind", ["mtp", "v1", "v2"])
def test_a_slot_goes_on_from_a_copy(kind: str, tmp_path: Path) -> None:
    """Saved after 64 tokens, then another text on the slot; the copy goes on with tokens of its own, over the same pages."""
    k, prefix, config = 7, 64, drafter_files.block_config(kind == "v2", sliding_window=50)
    block = drafter_files.write_block_folder(tmp_path, config)
    head = drafter_files.random_tensors(drafter_files.mtp_shapes(HYBRID), offset=True)
    target = make_target(SPEC, k)
    drafter: Drafter = (
        mtp.MtpDrafter(target, head) if kind == "mtp" else BUILD[kind == "v2"](target, CheckpointSource(tmp_path))
    )
    first, other = (make_truth(160, 2, seed=seed) for seed in (5, 6))
    play(drafter, 0, first, prefix, 64, [], k)
    drafter.save(0, 1)
    play(drafter, 0, first, 129, 64, [3], k, start=prefix)
    drafter.close(0)
    joined = Truth(
        first.tokens[:prefix] + other.tokens[prefix:],
        torch.cat([first.taps[:prefix], other.taps[prefix:]]),
        torch.cat([first.hidden[:prefix], other.hidden[prefix:]]),
    )
    drafter.open(0, joined.tokens[:prefix], prefix)
    drafter.restore(0, 1)
    played = play(drafter, 0, joined, 70, 64, [1], k, start=prefix)
    if isinstance(drafter, mtp.MtpDrafter):
        check_mtp(drafter, head, joined, played)
    else:
        check_block(target, config, block, joined, played)
