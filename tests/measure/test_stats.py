"""Formulas on rows and logs written by hand, and logs that must not be used."""

from pathlib import Path

import msgspec
import pytest

from paceline.measure.client import Reply
from paceline.measure.fixtures import Job
from paceline.measure.probe import PointRefused, join
from paceline.measure.record import Row, hash_tokens
from paceline.measure.reqlog import RequestLog
from paceline.measure.stats import equal_share, group_figures, point_figures, positions, quantile

ROW = Row(
    index=0, workload="code", fixture="a", seed=1, request_id=2, finish_reason="stop_token", prompt_tokens=10,
    completion_tokens=21, rounds=10, drafted_tokens=30, accepted_tokens=10, accepted_per_position=[6, 3, 1],
    queue_s=0.1, prefill_s=0.2, decode_s=2.0, ttft_s=0.3, total_s=2.5, done_unix_ms=1_002_500, client_ttft_s=0.35,
    client_total_s=2.6, tokens_hash="x",
)  # fmt: skip
OTHER = msgspec.structs.replace(
    ROW, index=1, workload="story", fixture="b", request_id=3, finish_reason="output_limit", completion_tokens=11,
    rounds=10, drafted_tokens=20, accepted_tokens=0, accepted_per_position=[0, 0], queue_s=0.5, decode_s=1.0,
    ttft_s=0.9, total_s=3.0, done_unix_ms=1_004_000, client_ttft_s=0.91,
)  # fmt: skip


def line(event: str, fields: str) -> str:
    return f'{{"event":"{event}","timestamp_unix_ms":1000000,"server_instance_id":"s",{fields}}}\n'


def throughput(rounds: int, row_rounds: int, running: int = 0) -> str:
    batch = f'"decode_batch":{{"rounds":{rounds},"row_rounds":{row_rounds}}}'
    return line("throughput", f'"scheduler":{{"running":{running},"prefilling":0,"waiting":0}},{batch}')


def done(request_id: int, ids: list[int], reason: str = "stop_token") -> str:
    result = (
        f'{{"finish_reason":"{reason}","prompt_tokens":4,"completion_tokens":{len(ids)},"generated_token_ids":{ids}}}'
    )
    times = '{"prepare":0,"queue":0.1,"prefill":0.2,"decode":0.5,"ttft":0.3,"total":0.8}'
    counts = '{"rounds":1,"drafted_tokens":3,"accepted_tokens":1,"accepted_per_position":[1,0,0]}'
    return line(
        "request_done",
        f'"request_id":{request_id},"result":{result},"timings_seconds":{times},"speculative":{counts}',
    )


def test_figures_of_two_requests(tmp_path: Path) -> None:
    path = tmp_path / "log"
    warm_up = line("request_start", '"request_id":1') + done(1, [5]) + throughput(100, 100)
    path.write_text(warm_up + line("request_start", '"request_id":2') + throughput(10, 15, 2) + throughput(6, 9))
    figures = point_figures([ROW, OTHER], RequestLog(path).throughput_from(2))
    # First arrival 1000.0 s, last end 1004.0 s.
    assert figures.makespan_s == pytest.approx(4.0)
    assert figures.tokens_per_s == pytest.approx(32 / 4)
    assert figures.stream_tokens_per_s == pytest.approx((20 + 10) / 3.0)
    assert figures.acceptance == pytest.approx(10 / 50)
    assert figures.tokens_per_round == pytest.approx(1 + 10 / 20)
    assert figures.accepted_per_position == [6, 3, 1]
    assert figures.average_batch == pytest.approx(24 / 16)
    assert [figures.queue_p50_s, figures.queue_max_s] == pytest.approx([0.3, 0.5])
    assert [figures.ttft_p50_s, figures.ttft_p90_s] == pytest.approx([0.6, 0.84])
    assert figures.clock_difference_s == pytest.approx(0.03)
    assert figures.finish_reasons == {"output_limit": 1, "stop_token": 1}


def test_figures_without_denominator_are_none() -> None:
    row = msgspec.structs.replace(
        ROW, completion_tokens=1, rounds=0, drafted_tokens=0, accepted_tokens=0, accepted_per_position=[], decode_s=0.0
    )
    figures = group_figures([row])
    assert (figures.acceptance, figures.tokens_per_round, figures.stream_tokens_per_s) == (None, None, None)
    assert point_figures([row], []).average_batch is None


def test_shares_by_position() -> None:
    found = positions([ROW, OTHER])
    # 20 rounds, of which 6, 3 and 1 accepted the first, second and third draft.
    assert found.rounds == 20
    assert found.joint == pytest.approx([0.3, 0.15, 0.05])
    assert found.conditional == pytest.approx([0.3, 0.5, 1 / 3])
    per_round = group_figures([ROW, OTHER]).tokens_per_round
    assert per_round == pytest.approx(1 + sum(found.joint))
    only_first = msgspec.structs.replace(ROW, accepted_tokens=5, accepted_per_position=[5, 0, 0])
    assert positions([only_first]).conditional == [0.5, 0.0, None]
    no_rounds = positions([msgspec.structs.replace(ROW, rounds=0, accepted_tokens=0, accepted_per_position=[0])])
    assert (no_rounds.joint, no_rounds.conditional) == ([], [])


def test_quantile_is_linear() -> None:
    assert [quantile([4.0, 1.0, 3.0, 2.0], q) for q in (0, 0.5, 0.9, 1)] == [1.0, 2.5, pytest.approx(3.7), 4.0]
    assert quantile([7.0], 0.9) == 7.0


def test_equal_share_joins_by_fixture_and_seed() -> None:
    changed = msgspec.structs.replace(OTHER, tokens_hash="y")
    assert equal_share([OTHER, ROW], [ROW, OTHER]) == 1.0
    assert equal_share([ROW, changed], [ROW, OTHER]) == 0.5
    assert equal_share([msgspec.structs.replace(ROW, seed=2)], [ROW]) == 0.0
    assert hash_tokens([1, 23]) != hash_tokens([12, 3])


def test_log_leaves_out_a_line_that_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(done(1, [5]) + done(2, [6])[:40])
    assert list(RequestLog(path).done()) == [1]
    assert RequestLog(tmp_path / "absent").server_start is None


def test_idle_needs_a_line_after_the_last_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for text, idle in ((throughput(1, 1) + done(1, [5]), False), (done(1, [5]) + throughput(1, 1), True)):
        path.write_text(text)
        assert RequestLog(path).idle_after_last_request() is idle
    path.write_text(done(1, [5]) + throughput(1, 1, running=1))
    assert not RequestLog(path).idle_after_last_request()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (line("request_start", '"request_id":9'), "log holds 3 requests, this program sent 2"),
        (line("engine_restart", '"restarts":1'), "engine_restart"),
        (line("request_rejected", '"protocol":"openai.chat"'), "request_rejected"),
    ],
)
def test_logs_of_other_work_are_refused(tmp_path: Path, lines: str, words: str) -> None:
    path = tmp_path / "log"
    starts = line("request_start", '"request_id":1') + line("request_start", '"request_id":2')
    path.write_text(starts + done(1, [5]) + done(2, [6, 7]) + lines)
    with pytest.raises(PointRefused, match=words):
        join([JOB], [REPLY], WARM_UP, RequestLog(path))


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("", "req-2 .code/a. has no request_done"),
        (done(2, [6, 7], "cancelled"), "cancelled"),
        (done(2, [6]), "told 2 completion tokens, the log says 1"),
        (done(2, [6, 7]).replace(',"generated_token_ids":[6, 7]', ""), "no token ids for 2"),
        (done(2, [6, 7]).replace("[6, 7]", "[6]"), "1 token ids for 2"),
    ],
)
def test_rows_that_do_not_add_up_are_refused(tmp_path: Path, end: str, words: str) -> None:
    path = tmp_path / "log"
    path.write_text(
        line("request_start", '"request_id":1') + line("request_start", '"request_id":2') + done(1, [5]) + end
    )
    with pytest.raises(PointRefused, match=words):
        join([JOB], [REPLY], WARM_UP, RequestLog(path))


JOB = Job(0, "code", "a", "p", 2, 1)
REPLY, WARM_UP = Reply(2, 2, 0.31, 0.9), Reply(1, 1, 0.3, 0.9)
