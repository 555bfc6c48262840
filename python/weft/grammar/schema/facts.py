"""What is known of a value within one alternative of a schema: its types, and for each type its bounds and parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, lcm
from typing import Any

from weft.grammar.schema import patterns
from weft.grammar.schema.evaluate import holds
from weft.grammar.schema.nodes import DENIED, TYPES, Node, TooMuch

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


MAX_PLACES = 20_000
MAX_MATCHES = 4_000


@dataclass
class Merged:
    """Properties by name and by pattern, and the others: of each the nodes that hold together. `apart` are layers that
    could not be merged; `names` what is left to say of names.
    """

    named: dict[str, list[Node]] = field(default_factory=dict)
    patterns: dict[str, list[Node]] = field(default_factory=dict)
    rest: list[Node] = field(default_factory=list)
    apart: list[Layer] = field(default_factory=list)
    names: list[Node] = field(default_factory=list)

    @property
    def is_closed(self) -> bool:
        """Whether it has no properties but those that it names."""
        return False in self.rest and not self.patterns


def merged(objects: Objects, is_open: bool) -> Merged:
    """All layers in one, as far as that is exact. Without `is_open`, objects that name properties have no others,
    unless a schema says so.
    """
    layers = list(objects.layers)
    num_names = sum(len(layer.first) for layer in layers) + len(objects.required)
    num_patterns = sum(len(layer.patterns) for layer in layers)
    if num_names * len(layers) > MAX_PLACES or (num_names + num_patterns) * num_patterns > MAX_MATCHES:
        raise TooMuch("too many properties in schemas that hold at once")
    result = Merged()
    together: list[Layer] = []
    for layer in layers:
        # The first goes alone; others join it where every name's place in both is known.
        if together and not _fits(together, layer):
            result.apart.append(layer)
        else:
            together.append(layer)
    _merge(result, together)
    _require(result, objects)
    stated = any(layer.rest is not None for layer in layers)
    if not is_open and not stated and any(_names_some(layer) for layer in layers):
        result.rest.append(False)
    _name(result, objects.names)
    # Beside another pattern, which may match the same names, a forbidden one still says something.
    if False in result.rest and all(False in nodes for nodes in result.patterns.values()):
        result.patterns = {}
    return result


def _names_some(layer: Layer) -> bool:
    return not layer.is_derived and bool(layer.first or layer.patterns)


def _says_nothing(node: Node | None) -> bool:
    return node is None or node is True or node == {}


def _fits(together: list[Layer], layer: Layer) -> bool:
    return all(_fit(one, layer) and _fit(layer, one) for one in together)


def _fit(one: Layer, other: Layer) -> bool:
    """Whether what `one` says of the names and patterns of `other` is known."""
    if any(
        patterns.found(p, name) is None for p in one.patterns for name in other.first if name not in one.first
    ):
        return False
    if _says_nothing(one.rest):
        return True
    new = [pattern for pattern in other.patterns if pattern not in one.patterns]
    if not new:
        return True
    if one.rest is False and not one.patterns:
        # Names of the new patterns are forbidden, except those that `one` names, which are on their own.
        return True
    return not one.patterns and not any(
        patterns.found(p, name) is not False for p in new for name in one.first
    )


def _merge(result: Merged, layers: list[Layer]) -> None:
    names = dict.fromkeys(name for layer in layers for name in layer.first)
    found = dict.fromkeys(pattern for layer in layers for pattern in layer.patterns)
    for name in names:
        result.named[name] = [node for layer in layers for node in _of_name(layer, name, len(layers) == 1)]
    for pattern in found:
        nodes: list[Node] = []
        for layer in layers:
            if pattern in layer.patterns:
                nodes.append(layer.patterns[pattern])
            elif layer.rest is not None:
                nodes.append(layer.rest)
        result.patterns[pattern] = nodes
    result.rest = [layer.rest for layer in layers if layer.rest is not None]


def _of_name(layer: Layer, name: str, is_alone: bool) -> list[Node]:
    """What a layer says of a property."""
    found = [layer.first[name]] if name in layer.first else []
    matched = [node for pattern, node in layer.patterns.items() if patterns.found(pattern, name)]
    unsure = any(patterns.found(pattern, name) is None for pattern in layer.patterns)
    if found or matched:
        return found + matched  # what is unsure stays beside, as a pattern
    return [] if layer.rest is None or (unsure and is_alone) else [layer.rest]


def _require(result: Merged, objects: Objects) -> None:
    """Names the properties that must be there, so that a grammar can demand them."""
    for name in objects.required:
        if name in result.named:
            continue
        verdicts = {pattern: patterns.found(pattern, name) for pattern in result.patterns}
        if None in verdicts.values():
            continue
        matched = [node for pattern, nodes in result.patterns.items() if verdicts[pattern] for node in nodes]
        result.named[name] = matched if any(verdicts.values()) else list(result.rest)


def _name(result: Merged, names: list[Node]) -> None:
    """Applies what is said of names to those that are known."""
    for node in names:
        if _says_nothing(node):
            continue
        verdicts = {name: holds(name, node) for name in result.named}
        for name, verdict in verdicts.items():
            if verdict is False:
                result.named[name] = [False]
        if None in verdicts.values() or not result.is_closed:
            result.names.append(node)


def needed_properties(objects: Objects) -> Iterator[list[Node]]:
    """What each property that must be there satisfies, as far as that is plain."""
    for name in objects.required:
        found: list[Node] = []
        for layer in objects.layers:
            if name in layer.first:
                found.append(layer.first[name])
            elif layer.rest is not None and not layer.patterns:
                found.append(layer.rest)
        yield found
