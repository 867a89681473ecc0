"""Planned bytes are allocated bytes, item by item, for a running backend of each model, format and drafter."""

import json
from pathlib import Path

import pytest
import torch
from msgspec import structs

from paceline.build import EngineOptions, configure
from paceline.core.config import EngineConfig
from paceline.drafters.base import Drafter
from paceline.drafters.block import BlockDrafter, Ring
from paceline.drafters.mtp import MtpDrafter
from paceline.kernels.round import GdnView, KvView
from paceline.memory.plan import Demand
from paceline.memory.plan_search import Planner
from paceline.planning import LAYOUTS, SubjectOptions, find_device, find_subject
from paceline.runner.backend import TorchBackend, make_backend
from tests.kit import drafter_files, models
from tests.kit.run import config, load


def planned(model: str, engine: EngineConfig) -> dict[str, int]:
    device = find_device("32GB", None, None)
    options = SubjectOptions(model, weights=engine.weights, kv_dtype=engine.kv_dtype, drafter=engine.drafter)
    subject, _ = find_subject(options, device)
    demand = Demand(
        max_concurrency=engine.max_concurrency,
        draft_tokens=engine.draft_tokens,
        max_context=engine.max_context,
        kv_dtype=engine.kv_dtype,
        drafter=engine.drafter,
        prefill_chunk=engine.prefill_chunk,
        state_checkpoints=engine.state_checkpoints,
        kv_capacity=engine.kv_capacity,
    )
    plan = Planner(LAYOUTS["paceline"], subject, device).plan(demand)
    return {item.name: item.bytes for item in plan.items}


def allocated(backend: TorchBackend) -> dict[str, int]:
    """Of the tensors themselves; the drafter says what it holds."""
    views = backend.caches.layers
    gdn = [view for view in views if isinstance(view, GdnView)]
    return {
        "weights": backend.weights_bytes,
        "KV": sum(view.kv.nbytes for view in views if isinstance(view, KvView)),
        "state slots": sum(view.state.nbytes + view.conv.nbytes for view in gdn),
        "window inputs": sum(
            view.draft_columns.nbytes + view.draft_beta.nbytes + view.draft_decay.nbytes for view in gdn
        ),
        "drafter weights": backend.drafter.spec.weights_bytes,
        "drafter context": backend.drafter.spec.state_bytes,
        "state checkpoints": backend.checkpoints.nbytes + backend.drafter.spec.checkpoint_bytes,
    }


def check(plan: dict[str, int], backend: TorchBackend) -> None:
    taken = allocated(backend)
    assert {name: plan[name] for name in taken} == taken
    facts = backend.facts()
    names = ("weights", "kv", "state", "window", "drafter_weights", "drafter_state", "checkpoint")
    assert [facts[f"{name}_bytes"] for name in names] == list(taken.values())


@pytest.mark.parametrize("weights", ["bf16", "fp32"])
@pytest.mark.parametrize("drafter", ["none", "ngram", "mtp", "dflash", "dflash2"])
def test_the_shipped_model_with_each_drafter(drafter: str, weights: str) -> None:
    options = EngineOptions(
        "embedded", weights=weights, drafter=drafter, max_concurrency=3, max_context=704, kv_capacity=1500, threads=1
    )
    engine = structs.replace(configure(options), state_checkpoints=2)
    backend = make_backend(engine)
    check(planned("embedded", engine), backend)
    assert backend.checkpoints.nbytes > 0
    held = context_tensors(backend.drafter)
    assert sum(t.nbytes for t in held) == backend.drafter.spec.state_bytes + backend.drafter.spec.checkpoint_bytes
    assert bool(held) == (drafter in ("mtp", "dflash", "dflash2"))


def context_tensors(drafter: Drafter) -> list[torch.Tensor]:
    """Every tensor in which a drafter keeps something of pages, slots or checkpoints."""
    match drafter:
        case MtpDrafter():
            return [drafter.kv.kv, drafter.last, drafter.kept]
        case BlockDrafter():
            contexts = [layer.context for layer in drafter.layers]
            return [t for c in contexts for t in ((c.k, c.v, c.kept) if isinstance(c, Ring) else (c.view.kv,))]
    return []


@pytest.mark.parametrize("drafter", ["dflash", "dflash2"])
def test_full_and_sliding_layers_of_a_drafter(drafter: str, tmp_path: Path) -> None:
    folder = models.save(models.build(models.hybrid_config(values=6)), tmp_path / "model")
    block = drafter_files.block_config(drafter == "dflash2")
    drafter_files.write_block_folder(folder / "drafters" / drafter, block)
    engine = config(
        drafter=drafter,
        drafter_path=str(folder / "drafters" / drafter),
        draft_tokens=5,
        kv_capacity=640,
        state_checkpoints=3,
    )
    backend = TorchBackend(engine, load(folder, "bf16").weights)
    held = context_tensors(backend.drafter)
    assert {isinstance(layer.context, Ring) for layer in backend.drafter.layers} == {True, False}  # type: ignore[attr-defined]
    assert sum(t.nbytes for t in held) == backend.drafter.spec.state_bytes + backend.drafter.spec.checkpoint_bytes
    check(planned(str(folder), engine), backend)


def test_a_shortlist_is_part_of_the_drafters_weights() -> None:
    """The plan does not know of it: N rows of the head more."""
    engine = configure(EngineOptions("embedded", "bf16", "mtp", draft_head="shortlist:600", max_context=256, threads=1))
    backend = make_backend(engine)
    rows = 600 * backend.spec.hidden * 2
    assert backend.drafter.spec.weights_bytes == planned("embedded", engine)["drafter weights"] + rows


@pytest.mark.parametrize("drafts", [0, 3, 15])
def test_the_window_follows_k(drafts: int) -> None:
    engine = configure(
        EngineOptions("embedded", weights="bf16", drafter="ngram", draft_tokens=drafts, max_context=256, threads=1)
    )
    check(planned("embedded", engine), make_backend(engine))


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4", "fp32"])
@pytest.mark.parametrize("family", ["llama", "llama untied", "qwen3", "hybrid"])
def test_random_models_in_each_format(family: str, weights: str, tmp_path: Path) -> None:
    tied = not family.endswith("untied")
    shape = models.hybrid_config() if family == "hybrid" else models.dense_config(family.split()[0], tied=tied)
    folder = models.save(models.build(shape), tmp_path / "model")
    engine = config(
        weights=weights, kv_dtype="fp32" if weights == "fp32" else "bf16", kv_capacity=640, state_checkpoints=3
    )
    backend = TorchBackend(engine, load(folder, weights).weights)
    check(planned(str(folder), engine), backend)
    # The config alone is enough.
    alone = tmp_path / "alone.json"
    alone.write_text(json.dumps(json.loads((folder / "config.json").read_text())))
    assert planned(str(alone), engine) == planned(str(folder), engine)
