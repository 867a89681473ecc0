"""The rows and records that a point leaves on disk, and how they are written and read.

A row is one request: the server's figures from its log, the client's clocks beside them. Everything a report says
is computed from these and the log. Times are in seconds, timestamps in Unix milliseconds.
"""

import hashlib
import os
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from paceline.measure.settings import Point

T = TypeVar("T")

ROWS_FILE = "requests.jsonl"
POINT_FILE = "point.json"
SERVER_LOG = "server.jsonl"
SERVER_OUTPUT = "server.out"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    workload: str
    fixture: str
    seed: int
    request_id: int
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    accepted_per_position: list[int]
    queue_s: float
    prefill_s: float
    decode_s: float
    ttft_s: float
    total_s: float
    done_unix_ms: int
    client_ttft_s: float
    client_total_s: float
    tokens_hash: str


class PointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a point ended. `effective` is the server's whole `server_start` line; `requested` what it had to equal."""

    point: Point
    status: Literal["done", "failed"]
    reason: str | None
    command: list[str]
    requested: dict[str, object]
    effective: dict[str, object] | None
    started_unix_ms: int
    boot_s: float
    load_s: float
    schema_version: int = 1


def hash_tokens(ids: list[int]) -> str:
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]


def write_json(path: Path, value: object) -> None:
    """Replaces the file whole, so that a reader never sees half of it."""
    draft = path.with_name(path.name + ".part")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    os.replace(draft, path)


def write_rows(path: Path, rows: list[Row]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def read_rows(folder: Path) -> list[Row]:
    path = folder / ROWS_FILE
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Row) for line in lines]


def read_json(path: Path, kind: type[T]) -> T:
    return msgspec.json.decode(path.read_bytes(), type=kind)
