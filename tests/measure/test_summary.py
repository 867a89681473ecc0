"""What a summary makes of its cells: the fastest of each C, ties, the paradox of acceptance, positions, warnings."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from paceline.measure.record import PointRecord, Row, write_json, write_rows
from paceline.measure.settings import BenchSettings, Point, Speculation, parse_speculation
from paceline.measure.summary import Summary, summarise
from paceline.measure.terminal import print_summary

Figures = tuple[float, list[int]]  # tok/s, and how many of ten rounds accepted the draft at each position


def campaign(
    folder: Path, cells: dict[str, Figures], batch: float = 1.0, start: dict[str, object] | None = None
) -> Summary:
    """A summary of cells with one request each, named as `none@1` or `mtp:3@4`; 20 tokens take as long as the speed says."""
    points = {}
    for name, figures in cells.items():
        one, _, c = name.partition("@")
        drafter, _, k = one.partition(":")
        points[Point(drafter, int(k or 0), int(c))] = figures
    for point, (speed, accepted) in points.items():
        place = folder / point.name
        place.mkdir(parents=True)
        row = Row(
            index=0, workload="code", fixture="a", seed=1, request_id=2, finish_reason="stop_token", prompt_tokens=10,
            completion_tokens=20, rounds=10, drafted_tokens=10 * point.draft_tokens, accepted_tokens=sum(accepted),
            accepted_per_position=accepted, queue_s=0.1, prefill_s=0.2, decode_s=2.0, ttft_s=0.3, total_s=20 / speed,
            done_unix_ms=1_002_500, client_ttft_s=0.35, client_total_s=2.6, tokens_hash="x",
        )  # fmt: skip
        write_rows(place / "requests.jsonl", [row])
        record = PointRecord(
            point=point, status="done", reason=None, command=[], requested={}, effective=start or {},
            started_unix_ms=0, boot_s=1.0, load_s=1.0,
        )  # fmt: skip
        write_json(place / "point.json", record)
        idle = '"scheduler":{"running":0,"prefilling":0,"waiting":0}'
        counts = f'"decode_batch":{{"rounds":100,"row_rounds":{100 * batch:.0f}}}'
        (place / "server.jsonl").write_text(
            '{"event":"request_start","timestamp_unix_ms":1,"request_id":2}\n'
            f'{{"event":"throughput",{idle},{counts}}}\n'
        )
    speculation = tuple(dict.fromkeys(point.speculation for point in points))
    settings = BenchSettings(
        model="m", speculation=speculation, concurrency=tuple(dict.fromkeys(point.concurrency for point in points))
    )
    return summarise(settings, "hash", folder)


def test_the_fastest_of_each_c_and_its_evidence(tmp_path: Path) -> None:
    cells: dict[str, Figures] = {
        "none@1": (10, []), "ngram:3@1": (20, [6, 3, 1]), "mtp:3@1": (15, [7, 5, 3]),
        "none@4": (40, []), "ngram:3@4": (30, [6, 3, 1]), "mtp:3@4": (50, [7, 5, 3]),
    }  # fmt: skip
    summary = campaign(tmp_path, cells, batch=4)
    assert summary.fastest == [Point("ngram", 3, 1), Point("mtp", 3, 4)] and summary.best == Point("mtp", 3, 4)
    assert summary.advice[0] == (
        "Fastest at C=1: ngram K=3, 20.0 tok/s (2.00× of no drafts), 33.3 % accepted, 2.00 tokens per round."
    )
    assert summary.advice[1].startswith(
        "Fastest at C=4: mtp K=3, 50.0 tok/s (1.25× of no drafts), 50.0 % accepted, 2.50"
    )
    assert summary.warnings == []


def test_no_drafts_may_win(tmp_path: Path) -> None:
    summary = campaign(tmp_path, {"none@1": (20, []), "ngram:3@1": (20.5, [1, 0, 0]), "ngram:7@1": (8, [1, 0, 0])})
    assert summary.best == Point("none", 0, 1)
    assert summary.advice[0] == "Fastest at C=1: no drafts, 20.0 tok/s."
    assert summary.advice[1].startswith("At C=1 nothing beat it")


def test_near_ties_take_the_smaller_k_then_the_one_named_first(tmp_path: Path) -> None:
    def best(name: str, three: float, seven: float) -> Point | None:
        cells: dict[str, Figures] = {
            "none@1": (10, []),
            "mtp:7@1": (seven, []),
            "ngram:7@1": (20, []),
            "mtp:3@1": (three, []),
        }
        return campaign(tmp_path / name, cells).best

    assert best("a", 19.6, 20) == Point("mtp", 3, 1)
    assert best("b", 19.0, 20) == Point("mtp", 7, 1)
    assert best("c", 19.0, 19.0) == Point("ngram", 7, 1)


def test_the_paradox_is_named_where_it_is(tmp_path: Path) -> None:
    three, seven = [9, 9, 9], [9, 8, 7, 6, 5, 4, 3]  # 90 and 60 % accepted, 3.7 and 5.2 tokens per round
    summary = campaign(tmp_path / "a", {"none@1": (10, []), "mtp:3@1": (25, three), "dflash2:7@1": (40, seven)})
    [line] = [line for line in summary.advice if line.startswith("Acceptance is not speed")]
    for words in ("dflash2 K=7 accepts 60.0 %", "mtp K=3 accepts 90.0 %", "dflash2 K=7 is 1.60×", "5.20 against 3.70"):
        assert words in line
    for cells in (
        {"none@1": (10.0, []), "mtp:3@1": (40.0, three), "dflash2:7@1": (25.0, seven)},  # no paradox
        {"mtp:3@1": (25.0, three), "dflash2:7@1": (25.5, seven)},  # within the margin
        # Only at another C:
        {
            "mtp:3@1": (25.0, three),
            "dflash2:7@1": (20.0, seven),
            "mtp:3@4": (95.0, three),
            "dflash2:7@4": (90.0, seven),
        },
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        found = campaign(folder, {name: (speed, list(accepted)) for name, (speed, accepted) in cells.items()})
        assert not any(line.startswith("Acceptance is not speed") for line in found.advice)


def test_positions_are_pooled_over_c_by_workload(tmp_path: Path) -> None:
    summary = campaign(
        tmp_path,
        {"none@1": (10, []), "mtp:3@1": (20, [8, 4, 2]), "none@2": (10, []), "mtp:3@2": (20, [6, 3, 0])},
        batch=2,
    )
    [drafting] = summary.drafting
    assert drafting.speculation == Speculation("mtp", 3) and list(drafting.workloads) == ["all", "code"]
    for shares in drafting.workloads.values():
        assert shares.rounds == 20
        assert shares.joint == pytest.approx([0.7, 0.35, 0.1])
        assert shares.conditional == pytest.approx([0.7, 0.5, 2 / 7])


@pytest.mark.parametrize(
    ("drafter", "words"),
    [
        ({"trained_block": 8, "expected_acceptance": {"7": 0.8}}, ["goes beyond K=7", "blocks of 8"]),
        ({"trained_block": None, "expected_acceptance": {"3": 0.9, "1": 0.95}}, ["goes beyond K=3", "card"]),
        ({"trained_block": None, "expected_acceptance": {}}, []),
        ({"trained_block": 16, "expected_acceptance": {"7": 0.8}}, []),
    ],
)
def test_more_drafts_than_a_drafter_was_made_for(tmp_path: Path, drafter: dict[str, object], words: list[str]) -> None:
    cells: dict[str, Figures] = {f"x:{k}@{c}": (20, []) for k in (3, 9, 11) for c in (1, 2)}
    warnings = campaign(tmp_path, cells, batch=2, start={"drafter": drafter}).warnings
    assert len(warnings) == bool(words)
    assert all(word in warnings[0] for word in [*words, "x with K=9, 11"] if words)


def test_thin_batches_are_warned_of(tmp_path: Path) -> None:
    thin = campaign(tmp_path / "a", {"none@4": (10, [])}, batch=1.9)
    assert "C=4 is nominal; the average decode batch was 1.90" in thin.warnings[0]
    assert campaign(tmp_path / "b", {"none@4": (10, [])}, batch=2.1).warnings == []


def test_the_table_fits_80_columns(tmp_path: Path) -> None:
    cells: dict[str, Figures] = {
        "none@16": (9999.9, []), "dflash2:15@16": (12345.6, [10] * 15), "ngram:7@16": (12.3, [0] * 7)
    }  # fmt: skip
    shown = io.StringIO()
    print_summary(campaign(tmp_path, cells, batch=15.5), Console(file=shown, width=80))
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= 80 and "…" not in shown.getvalue()
    assert lines[1].split() == [
        "drafter", "K", "C", "tok/s", "vs", "none", "stream", "accept", "tok/round", "batch", "TTFT", "equal",
    ]  # fmt: skip
    assert lines[3].split() == [
        "dflash2", "15", "16", "12345.6", "1.23×", "9.5", "100", "%", "16.00", "15.50", "300", "ms", "100", "%"
    ]  # fmt: skip
    assert "Fastest at C=16: dflash2 K=15" in shown.getvalue()


def test_every_cell_failed(tmp_path: Path) -> None:
    settings = BenchSettings(model="m", speculation=parse_speculation("none", None), concurrency=(1,))
    record = PointRecord(
        point=Point("none", 0, 1), status="failed", reason="no memory", command=[], requested={}, effective=None,
        started_unix_ms=0, boot_s=0.0, load_s=0.0,
    )  # fmt: skip
    (tmp_path / "none-k0-c1").mkdir()
    write_json(tmp_path / "none-k0-c1" / "point.json", record)
    summary = summarise(settings, "hash", tmp_path)
    assert summary.fastest == summary.drafting == [] and summary.best is None
    assert "No point could be measured" in summary.advice[0]
