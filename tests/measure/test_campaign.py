"""Whole campaigns against the stand-in server: what lands, what is refused, what differs."""

import fcntl
import io
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from paceline.core.errors import ConfigError
from paceline.measure.campaign import run_bench
from paceline.measure.probe import PointRefused, Probe, check_configuration
from paceline.measure.record import PointRecord, read_json, read_rows
from paceline.measure.settings import BenchSettings, Point, Speculation, parse_speculation
from paceline.measure.summary import Summary

Bench = Callable[..., tuple[Path, Summary, str]]
PLAIN = Speculation("none", 0)
NAMES = ["none-k0-c1", "ngram-k3-c1", "none-k0-c2", "ngram-k3-c2"]


def record(folder: Path, name: str) -> PointRecord:
    return read_json(folder / "points" / name / "point.json", PointRecord)


def reasons(summary: Summary) -> dict[str, str]:
    return {cell.point.name: cell.reason for cell in summary.cells if cell.reason is not None}


def test_whole_campaign_lands(bench: Bench) -> None:
    folder, summary, shown = bench()
    assert [cell.point.name for cell in summary.cells] == NAMES
    assert sorted(os.listdir(folder / "points")) == sorted(NAMES)
    for cell in summary.cells:
        rows = read_rows(folder / "points" / cell.point.name)
        assert [row.index for row in rows] == list(range(5))
        assert cell.figures is not None and cell.figures.completion_tokens == 5 * 12 == sum(
            row.completion_tokens for row in rows
        )
        assert sorted(cell.workloads) == ["code", "reasoning", "story", "structured", "translation"]
        assert cell.equal_share == 1.0
        assert all(row.client_ttft_s >= row.ttft_s > 0 for row in rows)
    assert "ngram" in shown and "report.html" in shown
    assert '"event": "server_stop"' in (folder / "points" / NAMES[0] / "server.jsonl").read_text()


def test_drafters_are_compared_in_one_grid(bench: Bench, small: BenchSettings) -> None:
    settings = msgspec.structs.replace(small, speculation=parse_speculation("ngram,mtp:2", "0,3"))
    folder, summary, shown = bench(settings, drafter={"mtp": {"expected_acceptance": {"1": 0.9}}})
    names = ["none-k0-c1", "ngram-k3-c1", "mtp-k2-c1", "none-k0-c2", "ngram-k3-c2", "mtp-k2-c2"]
    assert (
        [cell.point.name for cell in summary.cells] == names == sorted(os.listdir(folder / "points"), key=names.index)
    )
    assert all(cell.equal_share == 1.0 for cell in summary.cells)
    for point in summary.settings.points():
        command = record(folder, point.name).command
        assert command[command.index("--drafter") + 1] == point.drafter
        assert command[command.index("--draft-tokens") + 1] == str(point.draft_tokens)
    assert [point.concurrency for point in summary.fastest] == [1, 2]
    # Said when the first such point lands, and again at the end.
    assert shown.count("mtp with K=2 goes beyond K=1") == 2 and len(summary.warnings) == 1


def test_client_waits_for_text_not_for_the_role(bench: Bench, small: BenchSettings) -> None:
    folder, _, _ = bench(msgspec.structs.replace(small, speculation=(PLAIN,), concurrency=(1,)), tick_s=0.02)
    assert all(row.client_ttft_s >= 0.02 for row in read_rows(folder / "points" / "none-k0-c1"))


def test_auto_weights_become_those_of_the_first_point(bench: Bench) -> None:
    folder, _, _ = bench()
    commands = [record(folder, name).command for name in NAMES]
    asked = [command[command.index("--weights") + 1] for command in commands]
    assert asked == ["auto", "int8", "int8", "int8"]


@pytest.mark.parametrize("path", ["max_concurrency", "kv_cache"])
def test_other_configuration_is_refused_and_the_rest_goes_on(bench: Bench, path: str) -> None:
    folder, summary, _ = bench(report={f"engine.{path}": "other"}, when={"draft_tokens": 3, "max_concurrency": 1})
    assert list(reasons(summary)) == ["ngram-k3-c1"]
    assert reasons(summary)["ngram-k3-c1"].startswith(f"engine.{path}: requested ")
    assert reasons(summary)["ngram-k3-c1"].endswith("the server runs other")
    assert read_rows(folder / "points" / "ngram-k3-c1") == []


FIELDS = (
    "engine.speculative_backend", "engine.speculative_draft_window", "engine.max_concurrency", "engine.max_context",
    "engine.weights", "engine.kv_cache", "engine.prefill_chunk", "engine.threads", "engine.device",
    "artifact.weights_id",
)  # fmt: skip


@pytest.mark.parametrize("path", FIELDS)
def test_each_field_is_checked(small: BenchSettings, path: str) -> None:
    first: dict[str, object] = {
        "artifact": {"weights_id": "abc"},
        "engine": {"weights": "int8", "kv_cache": "bf16", "prefill_chunk": 256, "threads": 2, "device": "cpu"},
    }
    requested = Probe(small, [], ("serve",)).requested(Point("ngram", 3, 2), first)
    runs: dict[str, dict[str, object]] = {"artifact": {}, "engine": {}, "environment": {}}
    for name, value in requested.items():
        group, key = name.split(".")
        runs[group][key] = value
    check_configuration(requested, dict(runs))
    group, key = path.split(".")
    del runs[group][key]
    with pytest.raises(PointRefused, match=f"^{path}: requested .*, the server runs None$"):
        check_configuration(requested, dict(runs))


def test_asked_weights_must_be_run(bench: Bench, small: BenchSettings) -> None:
    settings = msgspec.structs.replace(small, weights="bf16", speculation=(PLAIN,), concurrency=(1,))
    _, summary, _ = bench(settings, report={"engine.weights": "int8"})
    assert reasons(summary) == {"none-k0-c1": "engine.weights: requested bf16, the server runs int8"}


def test_first_failed_point_sets_no_standard(bench: Bench) -> None:
    report = {"engine.max_context": 1, "engine.kv_cache": "int8"}
    _, summary, _ = bench(report=report, when={"draft_tokens": 0, "max_concurrency": 1})
    assert list(reasons(summary)) == ["none-k0-c1"]
    assert summary.reference is not None and summary.reference.name == "ngram-k3-c1"


def test_totals_that_differ_are_refused(bench: Bench) -> None:
    _, summary, _ = bench(extra_tokens=1)
    assert list(reasons(summary)) == NAMES
    assert all(
        "the client was told 12 completion tokens, the log says 13" in text for text in reasons(summary).values()
    )


def test_server_that_cannot_start_is_a_result(bench: Bench) -> None:
    folder, summary, shown = bench(fail_boot=True)
    assert set(reasons(summary).values()) == {"the server ended with code 1: fake: try another"}
    assert summary.best is None and "No point could be measured" in shown
    assert (folder / "report.html").exists()


def test_server_that_dies_under_load_is_named_by_its_last_words(bench: Bench) -> None:
    _, summary, _ = bench(die_after=3)
    last_words = "the server ended with code 3: fake: out of luck"  # both of its threads may have said them
    assert all(reason.startswith(last_words) for reason in reasons(summary).values())
    assert reasons(summary)


@pytest.mark.parametrize(
    ("reply", "words"), [("refuse", "HTTP 400"), ("no_id", "x-request-id"), ("break", "fake: will not")]
)
def test_failed_request_fails_its_point(bench: Bench, small: BenchSettings, reply: str, words: str) -> None:
    _, summary, _ = bench(msgspec.structs.replace(small, speculation=(PLAIN,), concurrency=(2,)), reply=reply)
    assert words in reasons(summary)["none-k0-c2"]


def test_server_that_will_not_stop_is_killed(
    bench: Bench, small: BenchSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.measure.child.STOP_TIMEOUT_S", 0.3)
    begun = time.monotonic()
    _, summary, _ = bench(msgspec.structs.replace(small, speculation=(PLAIN,), concurrency=(1,)), stubborn=True)
    assert reasons(summary) == {} and time.monotonic() - begun < 8


def test_other_tokens_show_in_the_equal_share(bench: Bench) -> None:
    _, summary, shown = bench(salt_when_k=3)
    assert [cell.equal_share for cell in summary.cells] == [1.0, 0.0, 1.0, 0.0]
    assert "not the same work" in shown


def test_folder_of_other_settings_is_refused(bench: Bench, small: BenchSettings) -> None:
    bench()
    with pytest.raises(ConfigError, match="seeds: 1 there, 2 here"):
        bench(msgspec.structs.replace(small, seeds=2))
    with pytest.raises(ConfigError, match="speculation: none,ngram:3 there, none,mtp:2 here"):
        bench(msgspec.structs.replace(small, speculation=parse_speculation("mtp:2", None)))


def test_folder_with_other_things_is_refused(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds no campaign"):
        bench()


def test_folder_in_use_is_refused(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another bench"):
            bench()


def test_finished_folder_is_only_reported_again(bench: Bench) -> None:
    _, first, _ = bench()
    _, second, _ = bench(fail_boot=True)
    assert msgspec.structs.replace(second, made_at=first.made_at) == first


def test_without_out_the_unfinished_folder_goes_on(
    small: BenchSettings, fake: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quiet = Console(file=io.StringIO())
    settings = msgspec.structs.replace(small, speculation=(PLAIN,))
    first = run_bench(settings, quiet, serve=fake)
    assert first.parent == Path("runs") and first.name.startswith("fake-")
    kept = (first / "points" / "none-k0-c1" / "requests.jsonl").read_bytes()
    for path in sorted((first / "points" / "none-k0-c2").iterdir()):
        path.unlink()
    (first / "points" / "none-k0-c2").rmdir()
    assert run_bench(settings, quiet, serve=fake) == first
    assert (first / "points" / "none-k0-c1" / "requests.jsonl").read_bytes() == kept
    assert len(read_rows(first / "points" / "none-k0-c2")) == 5
