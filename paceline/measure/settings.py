"""What one campaign measures: the settings a person gives, and the points of the grid that follow from them.

Lengths are in tokens. Both are plain data; nothing here reads files or starts anything.
"""

import hashlib
import sys

import msgspec

from paceline import __version__
from paceline.core.errors import ConfigError

SERVE_COMMAND = (sys.executable, "-m", "paceline", "serve")


class Point(msgspec.Struct, frozen=True):
    """One cell of the grid: what a server is started with. K = 0 always means the drafter `none`."""

    drafter: str
    draft_tokens: int
    concurrency: int

    @property
    def name(self) -> str:
        return f"{self.drafter}-k{self.draft_tokens}-c{self.concurrency}"


class BenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`prompts` fixtures of each workload are sent with each of `seeds` seeds; `max_tokens` caps their output."""

    model: str
    drafter: str = "ngram"
    draft_tokens: tuple[int, ...] = (0, 3, 7)
    concurrency: tuple[int, ...] = (1, 2, 4)
    weights: str = "auto"
    max_context: int = 2048
    max_tokens: int | None = None
    prompts: int = 4
    seeds: int = 1
    temperature: float = 0.0

    def __post_init__(self) -> None:
        _check_list("--draft-tokens", self.draft_tokens, 0)
        _check_list("--concurrency", self.concurrency, 1)
        for flag, value in (("--prompts", self.prompts), ("--seeds", self.seeds), ("--max-context", self.max_context)):
            if value < 1:
                raise ConfigError(flag, value, "must be at least 1")
        if self.max_tokens is not None and self.max_tokens < 2:
            raise ConfigError("--max-tokens", self.max_tokens, "must be at least 2: the first token is no decoding")
        if not 0 <= self.temperature <= 2:
            raise ConfigError("--temperature", self.temperature, "must be from 0 (greedy) to 2")
        if self.drafter == "none" and any(self.draft_tokens):
            raise ConfigError("--drafter", "none", "drafts no tokens; use --draft-tokens 0 or another drafter")

    def points(self) -> list[Point]:
        """The grid in its order of measurement: C outside, K inside, so that the cells compared are close in time."""
        ks, cs = sorted(self.draft_tokens), sorted(self.concurrency)
        return [Point(self.drafter if k else "none", k, c) for c in cs for k in ks]

    def fingerprint(self, fixtures_hash: str) -> str:
        """Folders whose fingerprints differ hold figures that must not be mixed."""
        parts = msgspec.json.encode([__version__, fixtures_hash, self])
        return hashlib.sha256(parts).hexdigest()[:16]


def _check_list(flag: str, values: tuple[int, ...], least: int) -> None:
    if not values:
        raise ConfigError(flag, "empty", "give at least one number, such as 0,3,7")
    if min(values) < least:
        raise ConfigError(flag, min(values), f"must be at least {least}")
    if len(set(values)) < len(values):
        raise ConfigError(flag, ",".join(map(str, values)), "names a number twice")
