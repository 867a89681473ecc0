"""The five workloads: own prompts, an output limit each, and one hash over all of it.

A fixture is one prompt, a workload a family of fixtures (files in `prompts/`). A job is a fixture with a sampling seed:
one request. The list of jobs and its order are the same for every point of a campaign.
"""

import hashlib
from importlib.resources import files

import msgspec

from paceline.core.errors import ConfigError
from paceline.measure.settings import BenchSettings

WORKLOADS = ("structured", "code", "translation", "reasoning", "story")


class Fixture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    prompt: str


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`max_tokens` is the output limit of each of its fixtures."""

    workload: str
    max_tokens: int
    fixtures: list[Fixture]


class Job(msgspec.Struct, frozen=True):
    """One request: `index` is its place in the shuffled list."""

    index: int
    workload: str
    fixture: str
    prompt: str
    max_tokens: int
    seed: int


def load_workloads() -> list[Workload]:
    folder = files("paceline.measure") / "prompts"
    return [msgspec.json.decode((folder / f"{name}.json").read_bytes(), type=Workload) for name in WORKLOADS]


def fixtures_hash(workloads: list[Workload]) -> str:
    """Covers every prompt, name and output limit, whatever the layout of the files."""
    return hashlib.sha256(msgspec.json.encode(workloads)).hexdigest()[:16]


def make_jobs(settings: BenchSettings, workloads: list[Workload]) -> list[Job]:
    """Every chosen fixture with every seed, in one shuffled order that depends on the names and seeds alone."""
    most = min(len(workload.fixtures) for workload in workloads)
    if settings.prompts > most:
        raise ConfigError("--prompts", settings.prompts, f"each workload has {most}; use --seeds for more requests")
    chosen = [
        (workload, fixture, seed)
        for workload in workloads
        for fixture in workload.fixtures[: settings.prompts]
        for seed in range(1, settings.seeds + 1)
    ]
    # Sorting by a hash shuffles alike on every Python version, which random.shuffle does not promise.
    chosen.sort(key=lambda item: hashlib.sha256(f"{item[0].workload}/{item[1].name}/{item[2]}".encode()).digest())
    cap = settings.max_tokens
    return [
        Job(index, w.workload, f.name, f.prompt, w.max_tokens if cap is None else min(cap, w.max_tokens), seed)
        for index, (w, f, seed) in enumerate(chosen)
    ]
