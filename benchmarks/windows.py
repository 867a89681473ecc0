"""The logits of target and drafter at every position of every window of a reply, as the engine itself computes them.

Each request runs twice. The first run is the real one. In the second the drafter is asked after every token, its draws are
replaced by the tokens of the first run, and nothing is proposed. So every output starts a window, and every position
of it has the drafter's logits as they are when all drafts before it were right.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from benchmarks.agreement import dense
from paceline.core.config import EngineConfig
from paceline.core.messages import Counts, Event, Tally, Tokens
from paceline.core.request import Request
from paceline.drafters.base import Drafter, Observed, Target, Want
from paceline.engine.loop import Engine
from paceline.runner.backend import TorchBackend, make_backend
from paceline.runner.drafter import build_drafter
from paceline.runner.weights import load_weights
from paceline.sampling.draft import DraftView
from paceline.sampling.filters import Sampler, keep, pick
from paceline.sampling.verify import Limits

Line = tuple[torch.Tensor, torch.Tensor]  # logits [n] fp32 and their ids [n]


@dataclass
class Teacher:
    """Stands in for a DraftView: keeps the logits that it is asked to draw from, and answers with the known token."""

    view: DraftView
    truth: list[int]
    seen: list[Line] = field(default_factory=list)

    def draw(self, logits: torch.Tensor, drafted: list[int], ids: torch.Tensor | None = None) -> int:
        self.seen.append((logits.clone(), torch.arange(len(logits)) if ids is None else ids.clone()))
        return self.truth[self.view.index + len(drafted)]


class Recorder:
    """A drafter around a real one, for one request at a time. It drafts nothing, so that every token starts a window."""

    def __init__(self, inner: Drafter, target: Target) -> None:
        self.inner, self.target = inner, target
        self.spec = replace(inner.spec, hidden=True)
        self.truth: list[int] = []
        self.targets: list[torch.Tensor] = []
        self.windows: list[list[Line]] = []

    def open(self, slot: int, tokens: list[int], filled: int) -> None:
        self.targets, self.windows = [], []
        self.inner.open(slot, tokens, filled)

    def save(self, slot: int, place: int) -> None:
        self.inner.save(slot, place)

    def copy_page(self, source: int, target: int) -> None:
        self.inner.copy_page(source, target)

    def restore(self, slot: int, place: int) -> None:
        self.inner.restore(slot, place)

    def close(self, slot: int) -> None:
        self.inner.close(slot)

    def observe(self, rows: list[Observed]) -> None:
        self.inner.observe(rows)
        (row,) = rows
        assert row.hidden is not None
        if row.first_token + len(row.tokens) > row.start + len(row.hidden):  # a token was sampled
            self.targets.append(self.target.head.logits(row.hidden[-1:])[0])

    def propose(self, rows: list[Want]) -> list[list[int]]:
        for row in rows:
            k = min(row.k, len(self.truth) - row.view.index)
            if k > 0:
                teacher = Teacher(row.view, self.truth)
                self.inner.propose([replace(row, k=k, view=teacher)])  # type: ignore[arg-type]
                self.windows.append(teacher.seen)
        return [[] for _ in rows]


@dataclass(frozen=True)
class Reply:
    """One request and what it gave: targets[i] [V] are the target's logits of output i; windows[j][i] the drafter's logits
    of draft i after output j, the outputs before it being the drafts. `rounds` and `accepted` are the real run's."""

    request: Request
    ids: list[int]
    rounds: int
    accepted: int
    targets: list[torch.Tensor]
    windows: list[list[Line]]
    vocab: int


def replies(config: EngineConfig, requests: list[Request]) -> Iterator[Reply]:
    """Runs each request for real, then with the recorder."""
    recorders: list[Recorder] = []

    def recorded(target: Target) -> Recorder:
        recorders.append(Recorder(build_drafter(config, target), target))
        return recorders[0]

    ids: list[int] = []
    tally = Tally()

    def publish(event: Event) -> None:
        if isinstance(event, Tokens):
            ids.extend(event.ids)
            tally.add(len(event.ids), event.proposed, event.accepted)

    real = Engine(make_backend(config), config, publish)
    watched = TorchBackend(config, load_weights(config), recorded)
    again = Engine(watched, config, publish)
    for request in requests:
        outputs: list[tuple[list[int], Counts]] = []
        for engine in (real, again):
            ids, tally = [], Tally()
            recorders[0].truth = outputs[0][0] if outputs else []
            engine.submit(request)
            while engine.busy:
                engine.step()
            outputs.append((ids, tally.at(len(ids))))
        (truth, counts), (same, _) = outputs
        assert truth == same, "the reply depends on the drafts"
        recorder = recorders[0]
        yield Reply(request, truth, counts.rounds, counts.accepted, recorder.targets, recorder.windows, watched.vocab)


@dataclass(frozen=True)
class Place:
    """One position of a window: the target's distribution p [V] there, the token x that it drew, the drafter's logits.

    `view` draws for the window; `drafted` are the window's tokens before this one.
    """

    p: torch.Tensor
    x: int
    line: Line
    view: DraftView
    drafted: list[int]


def places(reply: Reply) -> Iterator[list[Place]]:
    """Every window of a reply. A place is only good until the next one: its view counts the outputs so far."""
    params, prompt = reply.request.sampling, reply.request.prompt
    sampler = Sampler(params, prompt, reply.vocab)
    ps = []
    for index, (token, logits) in enumerate(zip(reply.ids, reply.targets, strict=True)):
        penalised = sampler.penalties.apply(logits) if sampler.penalties.active else logits
        kept = keep(penalised / params.temperature, params)
        assert pick(*kept, params.seed, index) == token, "these are not the logits that the token was drawn from"
        ps.append(dense(*kept, reply.vocab))
        sampler.penalties.add(token)
    sampler = Sampler(params, prompt, reply.vocab)
    limits = Limits(reply.request.max_tokens, "output_limit", 0, frozenset())
    for start, window in enumerate(reply.windows, 1):
        sampler.penalties.add(reply.ids[start - 1])
        view = DraftView(sampler, limits, start)
        yield [
            Place(ps[start + i], reply.ids[start + i], line, view, reply.ids[start : start + i])
            for i, line in enumerate(window)
        ]
