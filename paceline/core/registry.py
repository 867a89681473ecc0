"""Tables of names to `module:object`, imported on first use. Adding a drafter, model or format is one file and one line."""

from collections.abc import Iterator
from importlib import import_module
from typing import Generic, TypeVar, cast

from paceline.core.errors import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """`kind` is the flag or config key that the names belong to; it appears in the error for an unknown name."""

    def __init__(self, kind: str, table: dict[str, str]) -> None:
        self.kind, self.table = kind, table

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def get(self, name: str) -> T:
        if name not in self.table:
            raise ConfigError(self.kind, name, f"unknown; choose one of {', '.join(self.table)}")
        module, _, attribute = self.table[name].partition(":")
        return cast(T, getattr(import_module(module), attribute))
