"""Which names of a program hold what: scopes within scopes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from weft.migration.values import Value, one_of


@dataclass
class Scope:
    """Names that hold something known; None: something else. Functions see what is around them, no class's names."""

    around: Scope | None = None
    names: dict[str, Value | None] = field(default_factory=dict)
    is_class: bool = False

    def find(self, name: str) -> Value | None:
        """What the name holds; None where that is not known."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names and (scope is self or not scope.is_class):
                return scope.names[name]
            scope = scope.around
        return None

    def bind(self, name: str, value: Value | None) -> None:
        """The name holds this from here on."""
        self.names[name] = value

    def after(self, branches: Iterable[dict[str, Value | None]]) -> None:
        """The names after several ways to here, of which one was taken."""
        ways = list(branches)
        for name in {name for way in ways for name in way}:
            held = [way[name] for way in ways if name in way]
            joined = held[0]
            for value in held[1:]:
                joined = one_of(joined, value)
            self.names[name] = joined
