"""Planned bytes are allocated bytes, item by item, for a running backend of each model, format and drafter."""

import json
from pathlib import Path

import pytest

from paceline.build import EngineOptions, configure
from paceline.core.config import EngineConfig
from paceline.kernels.round import GdnView, KvView
from paceline.memory.plan import Demand
from paceline.memory.plan_search import Planner
from paceline.planning import LAYOUTS, SubjectOptions, find_device, find_subject
from paceline.runner.backend import TorchBackend, make_backend
from tests.kit import models
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
    }


def check(plan: dict[str, int], backend: TorchBackend) -> None:
    taken = allocated(backend)
    assert {name: plan[name] for name in taken} == taken
    facts = backend.facts()
    names = ("weights", "kv", "state", "window", "drafter_weights", "drafter_state")
    assert [facts[f"{name}_bytes"] for name in names] == list(taken.values())


@pytest.mark.parametrize("weights", ["bf16", "fp32"])
@pytest.mark.parametrize("drafter", ["none", "ngram", "mtp", "dflash", "dflash2"])
def test_the_shipped_model_with_each_drafter(drafter: str, weights: str) -> None:
    options = EngineOptions(
        "embedded", weights=weights, drafter=drafter, max_concurrency=3, max_context=704, kv_capacity=1500, threads=1
    )
    engine = configure(options)
    backend = make_backend(engine)
    check(planned("embedded", engine), backend)
    if drafter == "mtp":
        # Room past the context end for the head's own recursion, in whole pages.
        assert backend.drafter.kv.kv.shape[0] == 3 * 768  # type: ignore[attr-defined]
        assert backend.drafter.kv.kv.nbytes == backend.drafter.spec.state_bytes  # type: ignore[attr-defined]
    if drafter.startswith("dflash"):
        rings = [layer.ring for layer in backend.drafter.layers]  # type: ignore[attr-defined]
        assert sum(ring.k.nbytes + ring.v.nbytes for ring in rings) == backend.drafter.spec.state_bytes


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
    engine = config(weights=weights, kv_dtype="fp32" if weights == "fp32" else "bf16", kv_capacity=640)
    backend = TorchBackend(engine, load(folder, weights).weights)
    check(planned(str(folder), engine), backend)
    # The config alone is enough.
    alone = tmp_path / "alone.json"
    alone.write_text(json.dumps(json.loads((folder / "config.json").read_text())))
    assert planned(str(alone), engine) == planned(str(folder), engine)
