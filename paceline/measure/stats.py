"""Figures of a group of requests, from the server's log only (rows hold what the log said of each request).

Formulas are those of docs/request-log.md. Sums are divided by sums, never means of means. Times are in seconds. The
only client figure is the difference between the two clocks.
"""

import math
from collections import Counter

import msgspec

from paceline.measure.record import Row
from paceline.measure.reqlog import Throughput


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """None where a figure has no denominator (acceptance without drafts, a batch without throughput lines).

    `tokens_per_s` is completion tokens over the makespan (first arrival to last end) of the whole point; it is None for
    one workload, because the workloads of a point run side by side. `stream_tokens_per_s` is what one reply sees.
    `clock_difference_s` is the median of client TTFT minus server TTFT.
    """

    requests: int
    prompt_tokens: int
    completion_tokens: int
    makespan_s: float | None
    tokens_per_s: float | None
    stream_tokens_per_s: float | None
    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    acceptance: float | None
    tokens_per_round: float | None
    accepted_per_position: list[int]
    average_batch: float | None
    queue_p50_s: float
    queue_max_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    clock_difference_s: float
    finish_reasons: dict[str, int]


class Positions(msgspec.Struct, frozen=True, kw_only=True):
    """Acceptance by draft position, the first draft first.

    `joint` is the share of the decode rounds that accepted the draft there, so the shares add up to tokens per round − 1;
    `conditional` the share of those rounds that had accepted the one before, None where no round had. A round that
    proposed no draft there counts as one that did not accept it.
    """

    rounds: int
    joint: list[float]
    conditional: list[float | None]


def quantile(values: list[float], q: float) -> float:
    """Linear between the two nearest order statistics; `values` is not empty."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def point_figures(rows: list[Row], throughput: list[Throughput]) -> Figures:
    """Figures of a whole point; `throughput` are its log lines since the first measured request."""
    begun = min(row.done_unix_ms / 1000 - row.total_s for row in rows)
    makespan_s = max(row.done_unix_ms for row in rows) / 1000 - begun
    rounds = sum(line.decode_batch.rounds for line in throughput)
    row_rounds = sum(line.decode_batch.row_rounds for line in throughput)
    return msgspec.structs.replace(
        group_figures(rows),
        makespan_s=makespan_s,
        tokens_per_s=_ratio(sum(row.completion_tokens for row in rows), makespan_s),
        average_batch=_ratio(row_rounds, rounds),
    )


def group_figures(rows: list[Row]) -> Figures:
    """Figures that any set of rows has, one workload for instance."""
    rounds = sum(row.rounds for row in rows)
    drafted, accepted = sum(row.drafted_tokens for row in rows), sum(row.accepted_tokens for row in rows)
    decoded = sum(max(row.completion_tokens - 1, 0) for row in rows)
    extra_per_round = _ratio(accepted, rounds)
    queues, ttfts = [row.queue_s for row in rows], [row.ttft_s for row in rows]
    return Figures(
        requests=len(rows),
        prompt_tokens=sum(row.prompt_tokens for row in rows),
        completion_tokens=sum(row.completion_tokens for row in rows),
        makespan_s=None,
        tokens_per_s=None,
        stream_tokens_per_s=_ratio(decoded, sum(row.decode_s for row in rows)),
        rounds=rounds,
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        acceptance=_ratio(accepted, drafted),
        tokens_per_round=None if extra_per_round is None else 1 + extra_per_round,
        accepted_per_position=_sum_positions([row.accepted_per_position for row in rows]),
        average_batch=None,
        queue_p50_s=quantile(queues, 0.5),
        queue_max_s=max(queues),
        ttft_p50_s=quantile(ttfts, 0.5),
        ttft_p90_s=quantile(ttfts, 0.9),
        clock_difference_s=quantile([row.client_ttft_s - row.ttft_s for row in rows], 0.5),
        finish_reasons=dict(sorted(Counter(row.finish_reason for row in rows).items())),
    )


def positions(rows: list[Row]) -> Positions:
    """Of any set of rows; without a decode round there are no shares."""
    rounds = sum(row.rounds for row in rows)
    accepted = _sum_positions([row.accepted_per_position for row in rows]) if rounds else []
    return Positions(
        rounds=rounds,
        joint=[count / rounds for count in accepted],
        conditional=[_ratio(count, before) for before, count in zip([rounds, *accepted], accepted, strict=False)],
    )


def equal_share(rows: list[Row], reference: list[Row]) -> float:
    """The share of requests whose tokens equal, one by one, those of the same request in the reference."""
    hashes = {(row.workload, row.fixture, row.seed): row.tokens_hash for row in reference}
    equal = sum(hashes.get((row.workload, row.fixture, row.seed)) == row.tokens_hash for row in rows)
    return equal / len(rows)


def _ratio(over: float, under: float) -> float | None:
    return over / under if under > 0 else None


def _sum_positions(lists: list[list[int]]) -> list[int]:
    return [sum(one[i] for one in lists if i < len(one)) for i in range(max(map(len, lists), default=0))]
