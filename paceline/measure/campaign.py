"""A campaign: the grid of points, one after another, in one folder that an interrupted run resumes from.

The folder holds `campaign.json` (the settings and their fingerprint), `points/<name>/` (one folder per point, complete
or absent), and at the end `summary.json` and `report.html`. A failed point is a result: it stays, and the rest goes on.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from paceline.core.errors import ConfigError
from paceline.measure.fixtures import fixtures_hash, load_workloads, make_jobs
from paceline.measure.probe import Probe
from paceline.measure.record import POINT_FILE, PointRecord, read_json, write_json
from paceline.measure.report import write_report
from paceline.measure.settings import SERVE_COMMAND, BenchSettings, Point
from paceline.measure.summary import beyond_training, summarise
from paceline.measure.terminal import print_summary

CAMPAIGN_FILE = "campaign.json"
SUMMARY_FILE = "summary.json"
REPORT_FILE = "report.html"
_LOCK_FILE = ".lock"


class Campaign(msgspec.Struct, frozen=True):
    settings: BenchSettings
    fixtures_hash: str
    fingerprint: str
    schema_version: int = 2


def run_bench(
    settings: BenchSettings, console: Console, out: Path | None = None, serve: tuple[str, ...] = SERVE_COMMAND
) -> Path:
    """Measures what is missing in the folder, then writes the summary and the report; returns the folder.

    Without `out` it is the newest unfinished folder of the same settings, or a new one under `runs/`. KeyboardInterrupt
    leaves the finished points in place, and the same call goes on from there.
    """
    workloads = load_workloads()
    jobs = make_jobs(settings, workloads)
    digest = fixtures_hash(workloads)
    campaign = Campaign(settings, digest, settings.fingerprint(digest))
    folder = out or _unfinished(campaign) or _new_folder(settings.model)
    with _locked(folder):
        _open_folder(folder, campaign)
        try:
            _measure(campaign, Probe(settings, jobs, serve), folder / "points", len(jobs), console)
        except KeyboardInterrupt:
            console.print(f"stopped; the same command goes on from {folder}", highlight=False, soft_wrap=True)
            raise
        summary = summarise(settings, digest, folder / "points")
        write_report(folder / REPORT_FILE, summary)
        write_json(folder / SUMMARY_FILE, summary)
    print_summary(summary, console)
    console.print(f"report   {folder / REPORT_FILE}\nsummary  {folder / SUMMARY_FILE}", highlight=False, soft_wrap=True)
    return folder


def _measure(campaign: Campaign, probe: Probe, points: Path, requests: int, console: Console) -> None:
    grid = campaign.settings.points()
    records = {point: _finished(points / point.name) for point in grid}
    missing = [point for point in grid if records[point] is None]
    if missing:
        # A summary of fewer points must not pass for this campaign's if it is stopped again.
        (points.parent / SUMMARY_FILE).unlink(missing_ok=True)
    warned: set[str] = set()
    with _progress(console) as progress:
        task = progress.add_task("", total=len(missing) * requests)
        for number, point in enumerate(missing, 1):
            place = len(grid) - len(missing) + number
            progress.update(task, description=f"{point.name} (point {place} of {len(grid)})")
            good = [record for record in map(records.get, grid) if record is not None and record.status == "done"]
            record = _land(probe, point, points, good[0].effective if good else None, lambda: progress.advance(task))
            records[point] = record
            progress.update(task, completed=number * requests)
            if record.reason is not None:
                progress.console.print(f"[red]{point.name} failed:[/] {record.reason}", highlight=False)
            for warning in set(beyond_training([record])) - warned:
                warned.add(warning)
                progress.console.print(f"[yellow]![/] {warning}", highlight=False)


def _land(
    probe: Probe, point: Point, points: Path, first: dict[str, object] | None, on_reply: Callable[[], None]
) -> PointRecord:
    """Measures into a draft folder and renames it, so that a point's folder is complete or absent."""
    draft = points / f".{point.name}.part"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    record = probe.measure(point, draft, first, on_reply)
    os.replace(draft, points / point.name)
    return record


def _finished(folder: Path) -> PointRecord | None:
    path = folder / POINT_FILE
    return read_json(path, PointRecord) if path.exists() else None


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        # Points differ in speed: the estimate must remember more than the last seconds.
        speed_estimate_period=3600,
    )


def _open_folder(folder: Path, campaign: Campaign) -> None:
    """Starts the folder, or refuses one that holds anything but this campaign."""
    path = folder / CAMPAIGN_FILE
    if path.exists():
        found = _read_campaign(path)
        if found is None:
            raise ConfigError("--out", folder, f"its {CAMPAIGN_FILE} cannot be read; choose another folder")
        if found.fingerprint != campaign.fingerprint:
            changed = _difference(found, campaign)
            raise ConfigError("--out", folder, f"holds a campaign of other settings ({changed}); choose another folder")
    elif set(os.listdir(folder)) - {_LOCK_FILE}:
        raise ConfigError("--out", folder, "is not empty and holds no campaign; choose another folder")
    else:
        write_json(path, campaign)
    (folder / "points").mkdir(exist_ok=True)


def _difference(found: Campaign, wanted: Campaign) -> str:
    for name in BenchSettings.__struct_fields__:
        there, here = getattr(found.settings, name), getattr(wanted.settings, name)
        if there != here:
            return f"{name}: {_shown(there)} there, {_shown(here)} here"
    return "other prompts or another version of paceline"


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _read_campaign(path: Path) -> Campaign | None:
    try:
        return read_json(path, Campaign)
    except (msgspec.DecodeError, ConfigError, OSError):
        return None


def _unfinished(campaign: Campaign) -> Path | None:
    """The newest folder under runs/ with the same settings that lacks a point or its summary."""
    found = [path.parent for path in Path("runs").glob(f"*/{CAMPAIGN_FILE}")]
    for folder in sorted(found, key=lambda folder: (folder / CAMPAIGN_FILE).stat().st_mtime, reverse=True):
        other = _read_campaign(folder / CAMPAIGN_FILE)
        wanted = [folder / "points" / point.name / POINT_FILE for point in campaign.settings.points()]
        complete = all(path.exists() for path in [*wanted, folder / SUMMARY_FILE])
        if other and other.fingerprint == campaign.fingerprint and not complete:
            return folder
    return None


def _new_folder(model: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model).name) or "model"
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two programs in one folder would mix their points, and share the machine that they measure."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError("--out", folder, "is a file; choose a folder")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError("--out", folder, "another bench runs in it; wait, or choose another folder") from error
        yield
