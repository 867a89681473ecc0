"""The load client: C workers in a closed loop over one list of jobs, each request streamed and timed.

Clocks start when a worker sends (a worker never waits for another) and are in seconds. Token counts are the server's
own `usage`; the request id that joins a reply with the server's log comes from the `x-request-id` header.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from time import perf_counter

import httpx
import msgspec

from paceline.core.errors import PacelineError
from paceline.measure.fixtures import Job

_TIMEOUT = httpx.Timeout(600, connect=10)


class LoadError(PacelineError):
    """A request of the load did not end well; the figures of its point cannot be used."""


class Reply(msgspec.Struct, frozen=True):
    request_id: int
    completion_tokens: int
    ttft_s: float
    total_s: float


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta


class _Usage(msgspec.Struct, frozen=True):
    completion_tokens: int


class _Error(msgspec.Struct, frozen=True):
    message: str


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_CHUNKS = msgspec.json.Decoder(_Chunk)


def run_load(
    base_url: str, model: str, jobs: list[Job], concurrency: int, temperature: float, on_reply: Callable[[], None]
) -> list[Reply]:
    """Sends every job, at most `concurrency` at a time; replies in the order of the jobs. Raises LoadError."""
    return asyncio.run(_run(base_url, model, jobs, concurrency, temperature, on_reply))


async def _run(
    base_url: str, model: str, jobs: list[Job], concurrency: int, temperature: float, on_reply: Callable[[], None]
) -> list[Reply]:
    replies: dict[int, Reply] = {}
    waiting: Iterator[tuple[int, Job]] = iter(enumerate(jobs))

    async def work(http: httpx.AsyncClient) -> None:
        for place, job in waiting:
            replies[place] = await _ask(http, _body(model, job, temperature), f"{job.workload}/{job.fixture}")
            on_reply()

    limits = httpx.Limits(max_connections=concurrency)
    # The server is on this machine: a proxy from the environment would only add its own time, or fail.
    async with httpx.AsyncClient(base_url=base_url, timeout=_TIMEOUT, limits=limits, trust_env=False) as http:
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(concurrency):
                    workers.create_task(work(http))
        except* LoadError as failures:
            first = failures.exceptions[0]
            raise LoadError(str(first)) from first
    return [replies[place] for place in range(len(jobs))]


def _body(model: str, job: Job, temperature: float) -> dict[str, object]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": job.prompt}],
        "max_tokens": job.max_tokens,
        "temperature": temperature,
        "seed": job.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def _ask(http: httpx.AsyncClient, body: dict[str, object], label: str) -> Reply:
    begun = perf_counter()
    ttft_s: float | None = None
    usage: _Usage | None = None
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")
                raise LoadError(f"{label}: HTTP {response.status_code}: {text[:300]}")
            request_id = _request_id(response, label)
            async for chunk in _chunks(response):
                if chunk.error is not None:
                    raise LoadError(f"{label}: {chunk.error.message}")
                if ttft_s is None and any(choice.delta.content for choice in chunk.choices):
                    ttft_s = perf_counter() - begun
                usage = chunk.usage or usage
    except (httpx.HTTPError, msgspec.DecodeError) as error:
        raise LoadError(f"{label}: {type(error).__name__} {error}".rstrip()) from error
    total_s = perf_counter() - begun
    if usage is None:
        raise LoadError(f"{label}: the stream ended without usage")
    # A reply without text (an immediate end token) has its first token at its end.
    return Reply(request_id, usage.completion_tokens, total_s if ttft_s is None else ttft_s, total_s)


async def _chunks(response: httpx.Response) -> AsyncIterator[_Chunk]:
    async for line in response.aiter_lines():
        if line.startswith("data:") and line != "data: [DONE]":
            yield _CHUNKS.decode(line[5:])


def _request_id(response: httpx.Response, label: str) -> int:
    header = response.headers.get("x-request-id", "")
    match = re.fullmatch(r"req-(\d+)", header)
    if match is None:
        raise LoadError(f"{label}: header x-request-id is {header!r}, not req-<number>: cannot find it in the log")
    return int(match[1])
