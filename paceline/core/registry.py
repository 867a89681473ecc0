"""Tables of names to `module:object`, imported on first use. Adding a drafter, model or format is one file and one line."""

from collections.abc import Iterator, Mapping
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
        return cast(T, load_object(choose(self.kind, name, self.table)))


def choose(kind: str, name: str, table: Mapping[str, T]) -> T:
    """The entry of a name that a person wrote for the flag or key `kind`; an unknown one lists those that there are."""
    if name not in table:
        raise ConfigError(kind, name, f"unknown; choose one of {', '.join(table)}")
    return table[name]


def load_object(name: str) -> Any:
    """ "module:attribute" → the object."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
