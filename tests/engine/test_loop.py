"""The engine's rounds over the scripted backend, which checks the protocol itself: outputs, counts, ends, leaks."""

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.config import EngineConfig
from paceline.core.messages import Admitted, Event, Finished, Stats, Tally, Tokens
from paceline.core.request import FinishReason, Request, SamplingParams
from paceline.engine.loop import Engine
from tests.kit.scripted import ALL_AT_ONCE, Script, ScriptedBackend, default_token, engine_config, make_backend

RUNS = (1, 2, 3, 5, 8, ALL_AT_ONCE)
VOCAB = 1000


def make(request_id: int, prompt_tokens: int, max_tokens: int, family: int = -1) -> Request:
    """A prompt of its own, or the beginning of its family's."""
    origin = request_id if family < 0 else 500 + family
    prompt = [(origin * 101 + i * 13) % VOCAB for i in range(prompt_tokens)]
    return Request(id=request_id, prompt=prompt, max_tokens=max_tokens, sampling=SamplingParams(seed=0))


def expected(request: Request, max_context: int) -> tuple[list[int], FinishReason]:
    """The output and its end, by the rules alone."""
    ids: list[int] = []
    while True:
        if len(ids) == request.max_tokens:
            return ids, "output_limit"
        if len(request.prompt) + len(ids) >= max_context:
            return ids, "context_capacity"
        ids.append(default_token(request.prompt, len(ids), VOCAB))
        if ids[-1] in request.stop_ids:
            return ids, "stop_token"


@dataclass
class Seen:
    """What came for one request."""

    ids: list[int] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    admitted: int = 0
    finished: Finished | None = None


class Bench:
    """An engine, its events sorted by request, and a clock that ticks once per reading."""

    def __init__(self, config: EngineConfig) -> None:
        self.backend: ScriptedBackend = make_backend(config)
        self.engine = Engine(self.backend, config, self.publish, self.clock)
        self.seen: dict[int, Seen] = {}
        self.admissions: list[int] = []
        self.stats: list[Stats] = []
        self.now = 0.0

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    def submit(self, request: Request) -> None:
        self.seen[request.id] = Seen()
        self.engine.submit(request)

    def publish(self, event: Event) -> None:
        match event:
            case Admitted(id=request_id):
                self.seen[request_id].admitted += 1
                self.admissions.append(request_id)
            case Tokens(request_id, ids, proposed, accepted):
                seen = self.seen[request_id]
                assert seen.admitted == 1 and seen.finished is None and ids
                seen.ids += ids
                seen.tally.add(len(ids), proposed, accepted)
            case Finished(id=request_id):
                assert self.seen[request_id].finished is None, "a second end"
                self.seen[request_id].finished = event
            case Stats():
                self.stats.append(event)
            case _:
                raise AssertionError(event)

    def drain(self) -> None:
        rounds = 0
        while self.engine.busy:
            self.engine.step()
            rounds += 1
            assert rounds < 5000, "the engine makes no progress"

    def check_empty(self) -> None:
        self.engine.check()
        self.backend.check()
        assert all(seen.finished is not None for seen in self.seen.values())


@dataclass(frozen=True)
class Plan:
    """One request of a random load: it comes at `arrive`, and may be cut after `cut_n` tokens or cancelled.

    Prompts of one family begin alike."""

    prompt_tokens: int
    max_tokens: int
    stops: bool
    arrive: int
    cut_n: int | None
    lag: int
    cancel: int | None
    family: int = -1


@st.composite
def plans(draw: st.DrawFn, k: int, chunk: int) -> Plan:
    lengths = st.one_of(
        st.integers(1, 2 * k + 3),
        st.integers(0, 4).flatmap(lambda n: st.integers(64 * n + 1, 64 * n + 64)),
        st.integers(chunk - k, chunk + k),
    )
    return Plan(
        draw(lengths),
        draw(st.one_of(st.integers(0, 3), st.integers(4, 60))),
        draw(st.booleans()),
        draw(st.integers(0, 12)),
        draw(st.none() | st.integers(1, 30)),
        draw(st.integers(0, 2)),
        draw(st.none() | st.integers(0, 25)),
        draw(st.integers(0, 2)),
    )


@st.composite
def loads(draw: st.DrawFn) -> tuple[EngineConfig, list[Plan]]:
    k = draw(st.sampled_from([0, 1, 3, 7, 15]))
    chunk = draw(st.sampled_from([64, 128, 256]))
    script = Script(run=draw(st.sampled_from(RUNS)), drafts=draw(st.lists(st.integers(0, k), max_size=4)), vocab=VOCAB,
                    stateful=draw(st.booleans()))  # fmt: skip
    config = engine_config(
        script, draft_tokens=k, prefill_chunk=chunk, max_concurrency=draw(st.integers(1, 4)),
        max_context=draw(st.sampled_from([330, 400])), kv_capacity=draw(st.sampled_from([416, 700, 3000])),
        admission=draw(st.sampled_from(["on-demand", "on-demand", "reserve"])), prefix_cache=draw(st.booleans()),
        state_checkpoints=draw(st.sampled_from([0, 1, 2, 9])),
    )  # fmt: skip
    return config, draw(st.lists(plans(k, chunk), min_size=1, max_size=6))


def request_of(request_id: int, plan: Plan) -> Request:
    request = make(request_id, plan.prompt_tokens, plan.max_tokens, plan.family)
    stop = [default_token(request.prompt, 17, VOCAB)] if plan.stops else []
    return msgspec.structs.replace(request, stop_ids=stop)


def play(config: EngineConfig, load: list[Plan], *, disturbed: bool) -> Bench:
    """Runs the load; `disturbed` with its cuts and cancels, which the HTTP side sends some rounds late."""
    bench = Bench(config)
    requests = [request_of(i, plan) for i, plan in enumerate(load)]
    due: dict[int, int] = {}
    turn = 0
    while turn <= 25 or bench.engine.busy:
        for i, plan in enumerate(load):
            if plan.arrive == turn:
                bench.submit(requests[i])
            if not disturbed or i not in bench.seen:
                continue
            if plan.cut_n is not None and len(bench.seen[i].ids) >= plan.cut_n:
                due.setdefault(i, turn + plan.lag)
            if due.get(i) == turn:
                assert plan.cut_n is not None
                bench.engine.cut(i, plan.cut_n)
            if plan.cancel == turn:
                bench.engine.cancel(i, "client_disconnect")
        bench.engine.step()
        turn += 1
        assert turn < 5000
    return bench


@settings(max_examples=150, deadline=None)
@given(loads())
def test_random_load(load: tuple[EngineConfig, list[Plan]]) -> None:
    config, requests = load
    bench = play(config, requests, disturbed=True)
    calm = play(config, requests, disturbed=False)
    for done in (bench, calm):
        done.check_empty()
        arrivals = [i for turn in range(13) for i, plan in enumerate(requests) if plan.arrive == turn]
        assert done.admissions == [i for i in arrivals if done.seen[i].admitted], "first come, first served"
    for i, plan in enumerate(requests):
        ids, reason = expected(request_of(i, plan), config.max_context)
        seen, whole = bench.seen[i], calm.seen[i]
        assert whole.finished is not None and seen.finished is not None
        assert (whole.ids, whole.finished.reason, whole.finished.n) == (ids, reason, len(ids))
        assert seen.ids == ids[: len(seen.ids)]
        end = seen.finished
        match end.reason:
            case "stop_string":
                assert end.n == plan.cut_n
            case "cancelled":
                assert (end.n, end.cause) == (len(seen.ids), "client_disconnect")
            case _:
                assert (end.reason, end.n, seen.ids) == (reason, len(ids), ids)
        if config.admission == "reserve":  # a pause begins with an empty window
            for n in range(end.n + 1):
                assert seen.tally.at(n) == whole.tally.at(n), "counts depend on how far past the cut the engine was"


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 50), st.booleans(), st.sampled_from([64, 128, 256]), st.integers(1, 3))
def test_same_output_for_every_run_length(
    prompt_tokens: int, max_tokens: int, stops: bool, chunk: int, concurrency: int
) -> None:
    plan = Plan(prompt_tokens, max_tokens, stops, 0, None, 0, None)
    ids, reason = expected(request_of(0, plan), 320)
    for run in RUNS:
        config = engine_config(
            Script(run=run, vocab=VOCAB), draft_tokens=60, prefill_chunk=chunk, max_concurrency=concurrency,
            max_context=320,
        )  # fmt: skip
        bench = play(config, [plan] * 3, disturbed=False)
        bench.check_empty()
        seen = bench.seen[0]
        assert seen.finished is not None
        assert (seen.ids, seen.finished.reason, seen.finished.n) == (ids, reason, len(ids))
        # The last token is left out: at the output limit it is the target's own, whatever the run.
        for n in range(1, len(ids)):
            counts = seen.tally.at(n)
            rounds, rest = divmod(n - 1, run or 61)
            assert counts.rounds == rounds + (rest > 0)
            assert counts.accepted == rounds * ((run or 61) - 1) + rest


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("prompt_tokens", [1, 64, 65, 200])
def test_prefill_only(prompt_tokens: int, max_tokens: int) -> None:
    bench = Bench(engine_config(prefill_chunk=64))
    bench.submit(make(0, prompt_tokens, max_tokens))
    bench.drain()
    bench.check_empty()
    end = bench.seen[0].finished
    assert end is not None and (end.reason, end.n) == ("output_limit", max_tokens)
    assert len(bench.seen[0].ids) == max_tokens


def test_a_prompt_that_fills_the_context() -> None:
    bench = Bench(engine_config(max_context=100))
    bench.submit(make(0, 100, 5))
    bench.submit(make(1, 99, 5))
    bench.drain()
    bench.check_empty()
    ends = [seen.finished for seen in bench.seen.values()]
    assert [(end.reason, end.n) for end in ends if end] == [("context_capacity", 0), ("context_capacity", 1)]


def test_a_short_request_beside_a_long_prompt() -> None:
    bench = Bench(engine_config(Script(run=1), prefill_chunk=128, max_context=4096, kv_capacity=8192))
    bench.submit(make(0, 3000, 5))
    bench.engine.step()
    bench.submit(make(1, 20, 6))
    for produced in range(1, 7):
        bench.engine.step()
        assert len(bench.seen[1].ids) == produced, "one token in every round, from the first"
    assert bench.seen[1].finished is not None
    assert bench.seen[0].ids == []
    bench.drain()
    bench.check_empty()


def test_refused_at_once_and_nothing_else_disturbed() -> None:
    bench = Bench(engine_config(kv_capacity=256, max_context=1024))
    bench.submit(make(0, 10, 5))
    bench.submit(make(1, 300, 5))
    end = bench.seen[1].finished
    assert end is not None and end.reason == "error" and end.error is not None and "256" in end.error
    bench.drain()
    bench.check_empty()
    assert bench.seen[1].admitted == 0 and bench.seen[0].ids


def test_commands_for_unknown_ids_are_ignored() -> None:
    bench = Bench(engine_config())
    bench.engine.cut(7, 3)
    bench.engine.cancel(7, "admin")
    bench.submit(make(0, 10, 5))
    bench.drain()
    bench.engine.cut(0, 3)
    bench.engine.cancel(0, "admin")
    bench.check_empty()


def test_shutdown_ends_everything() -> None:
    bench = Bench(engine_config(prefill_chunk=64, max_concurrency=2))
    for request_id, prompt_tokens in enumerate([5, 500, 5]):
        bench.submit(make(request_id, prompt_tokens, 50))
    bench.engine.step()
    bench.engine.shutdown()
    bench.check_empty()
    ends = [seen.finished for seen in bench.seen.values()]
    assert all(end is not None and (end.reason, end.cause) == ("cancelled", "shutdown") for end in ends)
    assert not bench.engine.busy


def test_stats_add_up() -> None:
    bench = Bench(engine_config(Script(run=2), draft_tokens=3, log_stats_interval_s=0.02))
    for request_id in range(3):
        bench.submit(make(request_id, 100, 30))
    bench.drain()
    assert len(bench.stats) > 2
    last = bench.stats[-1]
    assert (last.running, last.prefilling, last.waiting, last.pages_used) == (0, 0, 0, 0)
    assert sum(stats.prefill_tokens for stats in bench.stats) == 300
    assert sum(stats.decode_tokens for stats in bench.stats) == 3 * 29
    counts = [seen.tally.at(30) for seen in bench.seen.values()]
    assert sum(stats.row_rounds for stats in bench.stats) == sum(c.rounds for c in counts)
    assert sum(stats.proposed for stats in bench.stats) == sum(c.proposed for c in counts)
    assert sum(stats.accepted for stats in bench.stats) == sum(c.accepted for c in counts)
    windows = [[row for row in batch.rows if row.tokens is None] for batch in bench.backend.batches]
    assert sum(stats.rounds for stats in bench.stats) == sum(bool(rows) for rows in windows)
    assert bench.stats[0].running == 2 and bench.stats[0].waiting == 1


def test_stats_whenever_it_becomes_idle() -> None:
    bench = Bench(engine_config(log_stats_interval_s=1000))
    bench.submit(make(0, 10, 20))
    bench.engine.cancel(0, "admin")
    assert len(bench.stats) == 1 and bench.stats[0].step_s == 0.0, "also when no step ran"
    bench.now += 500
    bench.submit(make(1, 10, 20))
    bench.engine.step()
    assert len(bench.stats) == 1
    bench.engine.cut(1, 1)
    assert len(bench.stats) == 2 and bench.stats[1].interval_s < 1, "idle time is not part of an interval"
    bench.engine.step()
    assert len(bench.stats) == 2
