"""Runs requests through the real scheduler and the real torch backend in this process, without HTTP or a child."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from paceline.core.config import EngineConfig
from paceline.core.messages import Admitted, Event, Finished, Tally, Tokens
from paceline.core.request import Request, SamplingParams
from paceline.drafters.base import Drafter, Target
from paceline.engine.loop import Engine
from paceline.quant import WEIGHT_CODECS
from paceline.runner.backend import TorchBackend
from paceline.runner.weights import Weights, convert, read_family

Maker = Callable[[Target], Drafter]


@dataclass
class Reply:
    """`rounds`: (emitted, proposed, accepted) of every round that emitted something, the prompt's last chunk included."""

    ids: list[int] = field(default_factory=list)
    reason: str = ""
    cached: int = 0
    miss: str = ""
    tally: Tally = field(default_factory=Tally)
    rounds: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Model:
    weights: Weights
    format: str


def load(folder: Path, weights: str) -> Model:
    family, spec = read_family(folder, folder.name)
    return Model(Weights(spec, convert(folder, family.parts(spec), WEIGHT_CODECS.get(weights))), weights)


def backend(model: Model, drafter: Maker | None = None, **changes: object) -> TorchBackend:
    return TorchBackend(config(weights=model.format, **changes), model.weights, drafter)


def config(**changes: object) -> EngineConfig:
    values: dict[str, object] = {
        "model_folder": "", "model_name": "tiny", "weights_file": "", "device": "cpu", "weights": "bf16", "drafter": "none",
        "draft_tokens": 0, "max_concurrency": 4, "max_context": 512, "kv_capacity": 4096, "kv_dtype": "bf16",
        "prefill_chunk": 128, "threads": 2,
    }  # fmt: skip
    return EngineConfig(**{**values, **changes})  # type: ignore[arg-type]


def sampling(**changes: object) -> SamplingParams:
    values: dict[str, object] = {"seed": 1, "temperature": 0.0}
    return SamplingParams(**{**values, **changes})  # type: ignore[arg-type]


def run(
    model: Model, requests: list[Request], drafter: Maker | None = None, stagger: int = 0, **changes: object
) -> list[Reply]:
    """All requests through one engine; request i is submitted before step i · stagger, or, with stagger −1, when the ones
    before it have ended. The pool must be whole at the end."""
    cfg = config(weights=model.format, **changes)
    replies: dict[int, Reply] = {request.id: Reply() for request in requests}

    def publish(event: Event) -> None:
        if isinstance(event, Admitted):
            replies[event.id].cached, replies[event.id].miss = event.cached, event.miss
        elif isinstance(event, Tokens):
            replies[event.id].ids += event.ids
            replies[event.id].tally.add(len(event.ids), event.proposed, event.accepted)
            replies[event.id].rounds.append((len(event.ids), event.proposed, event.accepted))
        elif isinstance(event, Finished):
            assert not replies[event.id].reason, "finished twice"
            replies[event.id].reason = event.reason

    engine = Engine(TorchBackend(cfg, model.weights, drafter), cfg, publish)
    waiting, steps = list(requests), 0
    while waiting or engine.busy:
        while waiting and (steps >= (len(requests) - len(waiting)) * stagger if stagger >= 0 else not engine.busy):
            engine.submit(waiting.pop(0))
        engine.step()
        steps += 1
    engine.check()
    return [replies[request.id] for request in requests]
