"""A campaign that is killed or interrupted at any moment, and goes on, ends with the rows of an undisturbed one."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from paceline.measure.record import read_rows
from paceline.measure.settings import BenchSettings

DRIVER = """
import sys
from pathlib import Path
import msgspec
from rich.console import Console
from paceline.measure.campaign import run_bench
from paceline.measure.settings import BenchSettings
settings = msgspec.json.decode(sys.argv[1], type=BenchSettings)
run_bench(settings, Console(), Path(sys.argv[2]), tuple(sys.argv[3:]))
"""
ROOT = Path(__file__).parents[2]


def start(
    settings: BenchSettings, folder: Path, fake: tuple[str, ...], tick_s: float = 0.004
) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", DRIVER, msgspec.json.encode(settings).decode(), str(folder), *fake]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "FAKE_SERVER": f'{{"tick_s": {tick_s}}}'}
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Where the tests run in the background of a shell, an interrupt is ignored by all that they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def work(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    """What the rows say of the work itself: everything but clocks and the server's numbering."""
    return {
        path.name: [
            (row.index, row.fixture, row.seed, row.completion_tokens, row.rounds, row.accepted_tokens, row.tokens_hash)
            for row in read_rows(path)
        ]
        for path in sorted((folder / "points").iterdir())
    }


def servers(folder: Path) -> list[int]:
    """Processes whose command line names the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_servers_gone(folder: Path) -> None:
    """A server that was just being started when its parent ended gets its signal from the kernel a moment later."""
    deadline = time.monotonic() + 20
    while servers(folder):
        assert time.monotonic() < deadline, f"left behind: {servers(folder)}"
        time.sleep(0.05)


@pytest.fixture
def undisturbed(small: BenchSettings, fake: tuple[str, ...], tmp_path: Path) -> dict[str, list[tuple[object, ...]]]:
    assert start(small, tmp_path / "whole", fake).wait(120) == 0
    return work(tmp_path / "whole")


def test_killed_at_random_moments(
    small: BenchSettings, fake: tuple[str, ...], tmp_path: Path, undisturbed: dict[str, list[tuple[object, ...]]]
) -> None:
    folder, moments = tmp_path / "run", random.Random(7)
    for _ in range(6):
        process = start(small, folder, fake)
        time.sleep(0.4 + moments.random())
        process.kill()
        process.wait()
    assert start(small, folder, fake).wait(120) == 0
    assert work(folder) == undisturbed
    assert (folder / "report.html").exists()
    wait_servers_gone(folder)


def test_interrupt_stops_cleanly_and_resumes(
    small: BenchSettings, fake: tuple[str, ...], tmp_path: Path, undisturbed: dict[str, list[tuple[object, ...]]]
) -> None:
    folder = tmp_path / "run"
    # Slow enough that the interrupt comes long before the end, however late this process gets its turn.
    process = start(small, folder, fake, tick_s=0.06)
    while not (folder / "points" / "none-k0-c1").exists():
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=120)
    assert process.returncode != 0 and "the same command goes on" in shown
    wait_servers_gone(folder)
    assert not (folder / "summary.json").exists()
    first = (folder / "points" / "none-k0-c1" / "requests.jsonl").read_bytes()
    assert start(small, folder, fake).wait(120) == 0
    assert work(folder) == undisturbed
    assert (folder / "points" / "none-k0-c1" / "requests.jsonl").read_bytes() == first
