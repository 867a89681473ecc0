"""The prompts, their hash and order."""

import msgspec
import pytest

from paceline.core.errors import ConfigError
from paceline.measure.fixtures import WORKLOADS, fixtures_hash, load_workloads, make_jobs
from paceline.measure.settings import BenchSettings, parse_speculation

NGRAM = parse_speculation("ngram", None)


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
    settings = BenchSettings(model="m", speculation=NGRAM, prompts=3, seeds=2, max_tokens=100)
    jobs = make_jobs(settings, load_workloads())
    assert len({(job.workload, job.fixture, job.seed) for job in jobs}) == len(jobs) == 5 * 3 * 2
    assert [job.index for job in jobs] == list(range(30))
    assert {job.seed for job in jobs} == {1, 2} and max(job.max_tokens for job in jobs) == 100
    assert min(job.max_tokens for job in jobs) == 96
    # Shuffled: no workload comes in one block.
    assert all(len({job.workload for job in jobs[i : i + 6]}) > 1 for i in range(0, 30, 6))
    other_points = msgspec.structs.replace(settings, concurrency=(8,), speculation=NGRAM[:1])
    assert make_jobs(other_points, load_workloads()) == jobs


def test_more_prompts_than_there_are() -> None:
    with pytest.raises(ConfigError, match="each workload has 5"):
        make_jobs(BenchSettings(model="m", speculation=NGRAM, prompts=6), load_workloads())
