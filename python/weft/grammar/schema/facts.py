"""What is known of a value within one alternative of a schema: its types, and for each type its bounds and parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, lcm
from typing import Any

from weft.grammar.schema.nodes import DENIED, TYPES, Node

CHOICES = {"$ref", "allOf", "anyOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas", DENIED}


@dataclass
class Numbers:
    """Bounds of a number; `integer`: whether it must be one (True), must not (False), or may."""

    low: Any = None
    high: Any = None
    low_open: bool = False
    high_open: bool = False
    integer: bool | None = None
    step: Fraction | None = None

    def at_least(self, value: Any, is_open: bool) -> None:
        if self.low is None or value > self.low or (value == self.low and is_open):
            self.low, self.low_open = value, is_open

    def at_most(self, value: Any, is_open: bool) -> None:
        if self.high is None or value < self.high or (value == self.high and is_open):
            self.high, self.high_open = value, is_open

    def multiple_of(self, value: Any) -> None:
        step = abs(Fraction(str(value)))
        if self.step is not None:
            step = Fraction(
                lcm(step.numerator, self.step.numerator), gcd(step.denominator, self.step.denominator)
            )
        self.step = step

    def is_empty(self) -> bool:
        if self.low is None or self.high is None:
            return False
        if self.integer:
            low, high = self.integers()
            return low > high
        return bool(self.low > self.high or (self.low == self.high and (self.low_open or self.high_open)))

    def integers(self) -> tuple[int, int]:
        """The least and the greatest integer; both bounds must be there."""
        low, high = Fraction(str(self.low)), Fraction(str(self.high))
        least, most = -(-low.numerator // low.denominator), high.numerator // high.denominator
        return least + (self.low_open and least == low), most - (self.high_open and most == high)


@dataclass
class Strings:
    """Bounds of a text's length, patterns and formats that it satisfies."""

    least: int = 0
    most: int | None = None
    patterns: list[str] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)


@dataclass
class Layer:
    """What one schema says of an array's items, or of an object's properties."""

    first: Any  # a list of nodes, or a dict of them
    patterns: dict[str, Node]
    rest: Node | None  # None: nothing is said
    is_derived: bool = False


@dataclass
class Arrays:
    """Bounds of an array's length, its items by schema."""

    least: int = 0
    most: int | None = None
    unique: bool = False
    layers: list[Layer] = field(default_factory=list)
    contains: list[tuple[Node, int, int | None]] = field(default_factory=list)

    def item(self, position: int) -> list[Node]:
        """What an item satisfies."""
        found = []
        for layer in self.layers:
            if position < len(layer.first):
                found.append(layer.first[position])
            elif layer.rest is not None:
                found.append(layer.rest)
        return found

    @property
    def num_first(self) -> int:
        """How many items have their own schemas."""
        return max((len(layer.first) for layer in self.layers), default=0)


@dataclass
class Objects:
    """Bounds of an object's size, its properties by schema."""

    least: int = 0
    most: int | None = None
    required: dict[str, None] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    names: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Fork:
    """A choice: of `choices`, each nodes that hold together, one is enough; with `is_one`, exactly one holds. Where
    they say that a node does not hold, that is `denied`. One that `narrows` leaves some values out.
    """

    choices: list[list[Node]]
    is_one: bool = False
    denied: Node | None = None
    narrows: bool = False


@dataclass
class Branch:
    """One alternative: nodes still to be read, what those that were read say, and choices still to be made."""

    pending: list[Node] = field(default_factory=list)
    read: dict[int, dict[str, Any]] = field(default_factory=dict)
    refused: dict[int, Node] = field(default_factory=dict)
    types: tuple[str, ...] = TYPES
    values: list[Any] | None = None
    is_settled: bool = False  # `values` are all that is left to say
    numbers: Numbers = field(default_factory=Numbers)
    strings: Strings = field(default_factory=Strings)
    arrays: Arrays = field(default_factory=Arrays)
    objects: Objects = field(default_factory=Objects)
    forks: list[Fork] = field(default_factory=list)
    kept: list[list[list[Node]]] = field(
        default_factory=list
    )  # choices that are not made: alternatives stay together
    is_blank: bool = True  # nothing but choices is known
    residue: list[Node] = field(default_factory=list)  # must not hold, and is not said otherwise
    unresolved: list[str] = field(default_factory=list)

    def copy(self) -> Branch:
        """Another one, for another alternative."""
        n, s, a, o = self.numbers, self.strings, self.arrays, self.objects
        return Branch(
            list(self.pending),
            dict(self.read),
            dict(self.refused),
            self.types,
            self.values,
            self.is_settled,
            Numbers(n.low, n.high, n.low_open, n.high_open, n.integer, n.step),
            Strings(s.least, s.most, list(s.patterns), list(s.formats)),
            Arrays(a.least, a.most, a.unique, list(a.layers), list(a.contains)),
            Objects(o.least, o.most, dict(o.required), list(o.layers), list(o.names)),
            list(self.forks),
            list(self.kept),
            self.is_blank,
            list(self.residue),
            list(self.unresolved),
        )

    def facts(self, pending: list[Node]) -> Branch:
        """Another one without the choices that are still to be made, with more to read. What is shown by it may be left
        out of what is written: so it must not rest on what is not written yet.
        """
        other = self.copy()
        other.pending, other.forks = pending, []
        other.read = {key: node for key, node in self.read.items() if not CHOICES & set(node)}
        return other

    @property
    def is_choice(self) -> bool:
        """Whether it is nothing but one choice."""
        return self.is_blank and len(self.forks) == 1

    def with_each(self, choices: list[list[Node]]) -> list[Branch]:
        """One for each choice, the first one last."""
        found = []
        for choice in reversed(choices):
            other = self.copy()
            other.pending = list(choice)
            found.append(other)
        return found


def needed_items(arrays: Arrays) -> Iterator[list[Node]]:
    """What each item that must be there satisfies; those that are alike once."""
    for position in range(min(arrays.least, arrays.num_first + 1)):
        yield arrays.item(position)
