"""Tables of names to `module:object`, imported on first use. Adding a drafter, model or format is one file and one line."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Generic, TypeVar, cast

from paceline.core.errors import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """`kind` is the flag or config key that the names belong to; it appears in the error for an unknown name."""

    def __init__(self, kind: str, table: dict[str, str]) -> None:
        self.kind, self.table = kind, table

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __contains__(self, name: object) -> bool:
        return name in self.table

    def get(self, name: str) -> T:
        if name not in self.table:
            raise ConfigError(self.kind, name, f"unknown; choose one of {', '.join(self.table)}")
        return cast(T, load_object(self.table[name]))


def load_object(name: str) -> Any:
    """ "module:attribute" → the object."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
