"""Campaigns against the stand-in server, small enough for seconds."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from paceline.measure.campaign import run_bench
from paceline.measure.record import read_json
from paceline.measure.settings import BenchSettings, parse_speculation
from paceline.measure.summary import Summary

Bench = Callable[..., tuple[Path, Summary, str]]


@pytest.fixture
def fake() -> tuple[str, ...]:
    return (sys.executable, str(Path(__file__).with_name("fake_server.py")))


@pytest.fixture
def small() -> BenchSettings:
    return BenchSettings(
        model="fake", speculation=parse_speculation("ngram", "0,3"), concurrency=(1, 2), prompts=1, max_tokens=12
    )


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: tuple[str, ...], small: BenchSettings) -> Bench:
    """Runs a campaign whose servers behave as told; returns the folder, the summary and what the terminal showed."""

    def run(settings: BenchSettings = small, width: int = 140, **behaviour: object) -> tuple[Path, Summary, str]:
        monkeypatch.setenv("FAKE_SERVER", json.dumps(behaviour))
        shown = io.StringIO()
        folder = run_bench(settings, Console(file=shown, width=width), tmp_path / "run", fake)
        return folder, read_json(folder / "summary.json", Summary), shown.getvalue()

    return run
