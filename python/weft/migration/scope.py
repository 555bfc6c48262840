"""Nested scopes with the known values of a program's names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from weft.migration.values import Value, one_of


@dataclass
class Scope:
    """A scope: names with their values. None is an unknown value. As in Python, functions in a class do not see the
    names of the class's scope."""

    around: Scope | None = None
    names: dict[str, Value | None] = field(default_factory=dict)
    is_class: bool = False

    def find(self, name: str) -> Value | None:
        """Return the value of the name, or None if it is unknown."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names and (scope is self or not scope.is_class):
                return scope.names[name]
            scope = scope.around
        return None

    def bind(self, name: str, value: Value | None) -> None:
        """Bind the name to the value."""
        self.names[name] = value

    def after(self, branches: Iterable[dict[str, Value | None]]) -> None:
        """Merge the names after several branches, of which exactly one runs."""
        ways = list(branches)
        for name in {name for way in ways for name in way}:
            held = [way[name] for way in ways if name in way]
            joined = held[0]
            for value in held[1:]:
                joined = one_of(joined, value)
            self.names[name] = joined
