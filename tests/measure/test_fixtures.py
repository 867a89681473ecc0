"""The prompts, their hash and order; the settings' limits; the flags of the command."""

import msgspec
import pytest

from paceline.core.errors import ConfigError
from paceline.measure.fixtures import WORKLOADS, fixtures_hash, load_workloads, make_jobs
from paceline.measure.settings import BenchSettings, Point


def test_five_workloads_of_own_prompts() -> None:
    workloads = load_workloads()
    assert [workload.workload for workload in workloads] == list(WORKLOADS)
    for workload in workloads:
        assert 96 <= workload.max_tokens <= 160
        assert len({fixture.prompt for fixture in workload.fixtures}) == len(workload.fixtures) >= 4


def test_code_prompts_hold_the_function_to_repeat() -> None:
    [code] = [workload for workload in load_workloads() if workload.workload == "code"]
    assert sum("```" in fixture.prompt and "whole function again" in fixture.prompt for fixture in code.fixtures) >= 3


def test_hash_covers_prompts_and_limits() -> None:
    workloads = load_workloads()
    first = workloads[0]
    limit = msgspec.structs.replace(first, max_tokens=first.max_tokens + 1)
    prompt = msgspec.structs.replace(first.fixtures[0], prompt=first.fixtures[0].prompt + " ")
    reworded = msgspec.structs.replace(first, fixtures=[prompt, *first.fixtures[1:]])
    hashes = {fixtures_hash([one, *workloads[1:]]) for one in (first, limit, reworded)}
    assert len(hashes) == 3 and fixtures_hash(load_workloads()) in hashes


def test_jobs_are_every_fixture_with_every_seed_once() -> None:
    settings = BenchSettings(model="m", prompts=3, seeds=2, max_tokens=100)
    jobs = make_jobs(settings, load_workloads())
    assert len({(job.workload, job.fixture, job.seed) for job in jobs}) == len(jobs) == 5 * 3 * 2
    assert [job.index for job in jobs] == list(range(30))
    assert {job.seed for job in jobs} == {1, 2} and max(job.max_tokens for job in jobs) == 100
    assert min(job.max_tokens for job in jobs) == 96
    # Shuffled: no workload comes in one block.
    assert all(len({job.workload for job in jobs[i : i + 6]}) > 1 for i in range(0, 30, 6))
    other_points = msgspec.structs.replace(settings, concurrency=(8,), draft_tokens=(5,))
    assert make_jobs(other_points, load_workloads()) == jobs


def test_grid_has_no_drafter_at_k_0() -> None:
    points = BenchSettings(model="m", draft_tokens=(3, 0), concurrency=(2, 1)).points()
    assert points == [Point("none", 0, 1), Point("ngram", 3, 1), Point("none", 0, 2), Point("ngram", 3, 2)]
    assert points[1].name == "ngram-k3-c1"


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        ({"draft_tokens": (-1,)}, "--draft-tokens"),
        ({"draft_tokens": ()}, "--draft-tokens"),
        ({"draft_tokens": (3, 3)}, "--draft-tokens"),
        ({"concurrency": (0, 1)}, "--concurrency"),
        ({"prompts": 0}, "--prompts"),
        ({"seeds": 0}, "--seeds"),
        ({"max_tokens": 1}, "--max-tokens"),
        ({"max_context": 0}, "--max-context"),
        ({"temperature": -0.1}, "--temperature"),
        ({"drafter": "none"}, "--drafter"),
    ],
)
def test_wrong_settings_name_their_flag(change: dict[str, object], flag: str) -> None:
    base = msgspec.to_builtins(BenchSettings(model="m"))
    with pytest.raises((ConfigError, msgspec.ValidationError), match=flag):
        msgspec.convert(base | change, type=BenchSettings)


def test_more_prompts_than_there_are() -> None:
    with pytest.raises(ConfigError, match="each workload has 5"):
        make_jobs(BenchSettings(model="m", prompts=6), load_workloads())


def test_every_setting_changes_the_fingerprint() -> None:
    base = BenchSettings(model="m")
    others = [
        msgspec.structs.replace(base, model="n"),
        msgspec.structs.replace(base, weights="int8"),
        msgspec.structs.replace(base, temperature=0.5),
        msgspec.structs.replace(base, max_tokens=64),
    ]
    assert len({one.fingerprint("h") for one in [base, *others]} | {base.fingerprint("other")}) == 6
