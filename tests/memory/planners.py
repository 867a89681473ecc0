"""The 27B model with its block drafter on what a 32 GB card has left after weights, under both layouts."""

import json
from pathlib import Path

from paceline.memory.plan import Demand
from paceline.memory.plan_search import Planner
from paceline.planning import LAYOUTS, SubjectOptions, find_device, find_subject

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "memory.json").read_text(encoding="utf-8"))
MODEL, DRAFTER = "qwen3.8-27b", "dflash2"
LEFT_BYTES = GOLDEN["startup"][0]["available_after_weights_bytes"]


def planner(layout: str, left_bytes: int = LEFT_BYTES, drafter: str = DRAFTER, model: str = MODEL) -> Planner:
    device = find_device(None, None, str(left_bytes))
    subject, _ = find_subject(SubjectOptions(model, drafter=drafter), device)
    return Planner(LAYOUTS[layout], subject, device)


def demand(layout: str, **changes: object) -> Demand:
    values: dict[str, object] = {
        "max_concurrency": 8, "draft_tokens": 7, "max_context": 131072, "kv_dtype": "nvfp4", "drafter": DRAFTER,
        "prefill_chunk": LAYOUTS[layout].prefill_chunk,
    }  # fmt: skip
    return Demand(**{**values, **changes})  # type: ignore[arg-type]
