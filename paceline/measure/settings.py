"""What one campaign measures: the settings a person gives, and the points of the grid that follow from them.

Lengths are in tokens. All of it is plain data; nothing here reads files or starts anything.
"""

import hashlib
import sys

import msgspec

from paceline import __version__
from paceline.core.config import MAX_DRAFT_TOKENS
from paceline.core.errors import ConfigError

SERVE_COMMAND = (sys.executable, "-m", "paceline", "serve")
NO_DRAFTS = "none"
DEFAULT_DRAFT_TOKENS = "0,3,7"


class Speculation(msgspec.Struct, frozen=True):
    """A drafter with its draft length K: what a campaign compares. K = 0 always means the drafter `none`."""

    drafter: str
    draft_tokens: int

    def __str__(self) -> str:
        return f"{self.drafter}:{self.draft_tokens}" if self.draft_tokens else self.drafter

    @property
    def label(self) -> str:
        """For tables and plots."""
        return f"{self.drafter} K={self.draft_tokens}" if self.draft_tokens else "no drafts"


class Point(msgspec.Struct, frozen=True):
    """One cell of the grid: what a server is started with."""

    drafter: str
    draft_tokens: int
    concurrency: int

    @property
    def name(self) -> str:
        return f"{self.drafter}-k{self.draft_tokens}-c{self.concurrency}"

    @property
    def speculation(self) -> Speculation:
        return Speculation(self.drafter, self.draft_tokens)


class BenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`prompts` fixtures of each workload are sent with each of `seeds` seeds; `max_tokens` caps their output."""

    model: str
    speculation: tuple[Speculation, ...]
    concurrency: tuple[int, ...] = (1, 2, 4)
    weights: str = "auto"
    max_context: int = 2048
    max_tokens: int | None = None
    prompts: int = 4
    seeds: int = 1
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if not self.speculation:
            raise ConfigError("--drafter", "empty", f"name at least one drafter, such as {NO_DRAFTS}")
        for one in self.speculation:
            if self.speculation.count(one) > 1:
                raise ConfigError("--drafter", one, "is named twice")
            if (one.drafter == NO_DRAFTS) != (one.draft_tokens == 0):
                raise ConfigError("--drafter", f"{one.drafter}:{one.draft_tokens}", f"only {NO_DRAFTS} has K = 0")
            _check_draft_tokens(one.draft_tokens)
        _check_concurrency(self.concurrency)
        for flag, value in (("--prompts", self.prompts), ("--seeds", self.seeds), ("--max-context", self.max_context)):
            if value < 1:
                raise ConfigError(flag, value, "must be at least 1")
        if self.max_tokens is not None and self.max_tokens < 2:
            raise ConfigError("--max-tokens", self.max_tokens, "must be at least 2: the first token is no decoding")
        if not 0 <= self.temperature <= 2:
            raise ConfigError("--temperature", self.temperature, "must be from 0 (greedy) to 2")

    def points(self) -> list[Point]:
        """The grid in its order of measurement: C outside, so that the cells that are compared are close in time."""
        return [Point(one.drafter, one.draft_tokens, c) for c in sorted(self.concurrency) for one in self.speculation]

    def fingerprint(self, fixtures_hash: str) -> str:
        """Folders whose fingerprints differ hold figures that must not be mixed."""
        parts = msgspec.json.encode([__version__, fixtures_hash, self])
        return hashlib.sha256(parts).hexdigest()[:16]


def parse_speculation(drafters: str, draft_tokens: str | None) -> tuple[Speculation, ...]:
    """What `--drafter` and `--draft-tokens` ask to compare.

    A drafter takes every K of `draft_tokens` (None: the default ones), or the K that it is named with, as `mtp:3`. No
    drafts at all come first and once, for K = 0 or `none`; then the drafters as named, each from its smallest K on.
    Raises ConfigError.
    """
    lengths = parse_numbers("--draft-tokens", DEFAULT_DRAFT_TOKENS if draft_tokens is None else draft_tokens)
    for k in lengths:
        _check_draft_tokens(k)
    named = [_parse_drafter(part.strip()) for part in drafters.split(",")]
    if draft_tokens is not None and any(lengths) and all(k is not None or name == NO_DRAFTS for name, k in named):
        raise ConfigError(
            "--draft-tokens", draft_tokens, f"no drafter of --drafter {drafters} takes a K from this list"
        )
    found = [Speculation(NO_DRAFTS, 0)] if (NO_DRAFTS, None) in named or 0 in lengths else []
    for name in dict.fromkeys(name for name, _ in named if name != NO_DRAFTS):
        own = [k for one, k in named if one == name]
        ks = [k for k in own if k is not None] + ([k for k in lengths if k] if None in own else [])
        found += [Speculation(name, k) for k in sorted(ks)]
    return tuple(found)


def _parse_drafter(text: str) -> tuple[str, int | None]:
    name, colon, length = text.partition(":")
    if not name:
        raise ConfigError(
            "--drafter",
            repr(text),
            "write names with commas, each with a draft length of its own or without, as in NAME,NAME:3",
        )
    if not colon:
        return name, None
    if name == NO_DRAFTS:
        raise ConfigError("--drafter", text, f"drafts nothing; write {NO_DRAFTS} without a length")
    if not length.isdecimal() or not 0 < int(length) <= MAX_DRAFT_TOKENS:
        fix = f"after the colon stands a draft length from 1 to {MAX_DRAFT_TOKENS}, as in {name}:3"
        raise ConfigError("--drafter", text, fix)
    return name, int(length)


def parse_numbers(flag: str, text: str) -> tuple[int, ...]:
    """Whole numbers with commas, each once."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(flag, text, "write whole numbers with commas, such as 0,3,7") from None
    if len(set(numbers)) < len(numbers):
        raise ConfigError(flag, text, "names a number twice")
    return numbers


def _check_draft_tokens(k: int) -> None:
    if not 0 <= k <= MAX_DRAFT_TOKENS:
        raise ConfigError("--draft-tokens", k, f"must be from 0 (no speculation) to {MAX_DRAFT_TOKENS}")


def _check_concurrency(values: tuple[int, ...]) -> None:
    if not values:
        raise ConfigError("--concurrency", "empty", "give at least one number, such as 1,2,4")
    if min(values) < 1:
        raise ConfigError("--concurrency", min(values), "must be at least 1")
    if len(set(values)) < len(values):
        raise ConfigError("--concurrency", ",".join(map(str, values)), "names a number twice")
