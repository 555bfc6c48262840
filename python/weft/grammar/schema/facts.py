"""The facts about a value in one alternative of a schema: its types, and for each type its bounds and parts.

A `Branch` holds the facts from all nodes of one alternative. `merged` combines the statements of several schemas about
an object's properties.
"""

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
    """Bounds of a number. `low_open` and `high_open` mark exclusive bounds. `integer` says whether it must be an
    integer (True), must not be one (False), or may be either (None)."""

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
        """The least and the greatest integer within the bounds. `low` and `high` must both be set."""
        low, high = Fraction(str(self.low)), Fraction(str(self.high))
        first, last = -(-low.numerator // low.denominator), high.numerator // high.denominator
        return first + (self.low_open and first == low), last - (self.high_open and last == high)


@dataclass
class Strings:
    """Bounds of a string's length, and the patterns and formats that it must satisfy."""

    low: int = 0
    high: int | None = None
    patterns: list[str] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)


@dataclass
class Layer:
    """The statements of one schema about an array's items or an object's properties. `is_derived`: see `DERIVED`."""

    first: Any  # the nodes of `prefixItems` (a list), or of `properties` (a dict)
    patterns: dict[str, Node]
    rest: Node | None  # the node of `items` or `additionalProperties`; None if the schema has none
    is_derived: bool = False


@dataclass
class Arrays:
    """Bounds of an array's length, and for each schema its statements about the items (`layers`)."""

    low: int = 0
    high: int | None = None
    unique: bool = False
    layers: list[Layer] = field(default_factory=list)
    contains: list[tuple[Node, int, int | None]] = field(default_factory=list)

    def item(self, position: int) -> list[Node]:
        """The nodes that the item at a position must satisfy."""
        nodes = []
        for layer in self.layers:
            if position < len(layer.first):
                nodes.append(layer.first[position])
            elif layer.rest is not None:
                nodes.append(layer.rest)
        return nodes

    @property
    def num_first(self) -> int:
        """The number of leading items that have their own nodes in some layer."""
        return max((len(layer.first) for layer in self.layers), default=0)


@dataclass
class Objects:
    """Bounds of an object's number of properties, and for each schema its statements about them (`layers`). `names` are
    the nodes of `propertyNames`."""

    low: int = 0
    high: int | None = None
    required: dict[str, None] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    names: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Fork:
    """A disjunction of `choices`, each a list of nodes that must all hold. With `exactly_one`, exactly one choice
    holds. If the choices together are the negation of a node, that node is `denied`. A fork that `narrows` loses some
    values."""

    choices: list[list[Node]]
    exactly_one: bool = False
    denied: Node | None = None
    narrows: bool = False


@dataclass
class Branch:
    """One alternative: the nodes that are not read yet, the facts of those that are, and the open choices (`forks`)."""

    pending: list[Node] = field(default_factory=list)
    read: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The nodes that were read, by `id`. All of them must hold."""
    refused: dict[int, Node] = field(default_factory=dict)
    """The nodes that must not hold, by `id`."""
    types: tuple[str, ...] = TYPES
    values: list[Any] | None = None
    is_settled: bool = False
    """Whether `values` are exactly the values of this alternative, so that the other facts don't matter."""
    numbers: Numbers = field(default_factory=Numbers)
    strings: Strings = field(default_factory=Strings)
    arrays: Arrays = field(default_factory=Arrays)
    objects: Objects = field(default_factory=Objects)
    forks: list[Fork] = field(default_factory=list)
    unmade: list[list[list[Node]]] = field(default_factory=list)
    """Choices that would give too many alternatives. They are not expanded, and become an `anyOf` beside the branch."""
    is_blank: bool = True
    """Whether the branch has no facts, only choices."""
    residue: list[Node] = field(default_factory=list)
    """Nodes that must not hold, and whose negation can't be expressed in other keywords."""
    unresolved: list[str] = field(default_factory=list)
    """Dangling references."""

    def copy(self) -> Branch:
        """An independent copy, for another alternative."""
        n, s, a, o = self.numbers, self.strings, self.arrays, self.objects
        return Branch(
            list(self.pending),
            dict(self.read),
            dict(self.refused),
            self.types,
            self.values,
            self.is_settled,
            Numbers(n.low, n.high, n.low_open, n.high_open, n.integer, n.step),
            Strings(s.low, s.high, list(s.patterns), list(s.formats)),
            Arrays(a.low, a.high, a.unique, list(a.layers), list(a.contains)),
            Objects(o.low, o.high, dict(o.required), list(o.layers), list(o.names)),
            list(self.forks),
            list(self.unmade),
            self.is_blank,
            list(self.residue),
            list(self.unresolved),
        )

    def facts(self, pending: list[Node]) -> Branch:
        """A copy with other nodes to read, and without open choices or nodes with choices. The caller drops conditions
        that the copy proves. So a proof must not use choices, which are not part of the result yet."""
        other = self.copy()
        other.pending, other.forks = pending, []
        other.read = {key: node for key, node in self.read.items() if not CHOICES & set(node)}
        return other

    @property
    def is_choice(self) -> bool:
        """Whether the branch is just one choice, without facts."""
        return self.is_blank and len(self.forks) == 1

    def with_each(self, choices: list[list[Node]]) -> list[Branch]:
        """A copy for each choice, in reverse order, for a stack."""
        branches = []
        for choice in reversed(choices):
            branch = self.copy()
            branch.pending = list(choice)
            branches.append(branch)
        return branches


def needed_items(arrays: Arrays) -> Iterator[list[Node]]:
    """Yield the nodes of each required item. Items after the leading ones have the same nodes, and are yielded once."""
    for position in range(min(arrays.low, arrays.num_first + 1)):
        yield arrays.item(position)


# Work to merge the layers of one object: names times layers, and names times patterns. More: `TooMuch`.
MAX_PLACES = 20_000
MAX_MATCHES = 4_000


@dataclass
class Merged:
    """The nodes for properties by name, for those that match a pattern, and for all others (`rest`). `separate` has the
    layers that could not be merged. `names` are nodes that property names must satisfy."""

    named: dict[str, list[Node]] = field(default_factory=dict)
    patterns: dict[str, list[Node]] = field(default_factory=dict)
    rest: list[Node] = field(default_factory=list)
    separate: list[Layer] = field(default_factory=list)
    names: list[Node] = field(default_factory=list)

    @property
    def is_closed(self) -> bool:
        """Whether only the properties in `named` are allowed."""
        return False in self.rest and not self.patterns


def merged(objects: Objects, is_open: bool) -> Merged:
    """Merge all layers, as far as that is exact. Without `is_open`, an object that lists properties forbids others,
    unless a schema allows them. Raises `TooMuch` for too many properties and layers."""
    layers = list(objects.layers)
    num_names = sum(len(layer.first) for layer in layers) + len(objects.required)
    num_patterns = sum(len(layer.patterns) for layer in layers)
    if num_names * len(layers) > MAX_PLACES or (num_names + num_patterns) * num_patterns > MAX_MATCHES:
        raise TooMuch("too many properties in schemas that hold at once")
    result = Merged()
    together: list[Layer] = []
    for layer in layers:
        # A layer can be merged if it is known, for every name, which schemas of each layer apply.
        if together and not _fits(together, layer):
            result.separate.append(layer)
        else:
            together.append(layer)
    _merge(result, together)
    _require(result, objects)
    has_rest = any(layer.rest is not None for layer in layers)
    if not is_open and not has_rest and any(_names_some(layer) for layer in layers):
        result.rest.append(False)
    _name(result, objects.names)
    # In a closed object, patterns that are all forbidden add nothing. Beside an allowed pattern a forbidden one
    # matters, because both may match one name.
    if False in result.rest and all(False in nodes for nodes in result.patterns.values()):
        result.patterns = {}
    return result


def _names_some(layer: Layer) -> bool:
    return not layer.is_derived and bool(layer.first or layer.patterns)


def _says_nothing(node: Node | None) -> bool:
    return node is None or node is True or node == {}


def _fits(together: list[Layer], layer: Layer) -> bool:
    return all(_fit(member, layer) and _fit(layer, member) for member in together)


def _fit(layer: Layer, other: Layer) -> bool:
    """Whether it is known which schemas of `layer` apply to each name and pattern of `other`."""
    unnamed = [name for name in other.first if name not in layer.first]
    if any(patterns.is_found(pattern, name) is None for pattern in layer.patterns for name in unnamed):
        return False
    if _says_nothing(layer.rest):
        return True
    new = [pattern for pattern in other.patterns if pattern not in layer.patterns]
    if not new:
        return True
    if layer.rest is False and not layer.patterns:
        # `layer` forbids all names that match the new patterns, except the names that it lists. Those are merged by
        # name.
        return True
    return not layer.patterns and not any(
        patterns.is_found(pattern, name) is not False for pattern in new for name in layer.first
    )


def _merge(result: Merged, layers: list[Layer]) -> None:
    names = dict.fromkeys(name for layer in layers for name in layer.first)
    all_patterns = dict.fromkeys(pattern for layer in layers for pattern in layer.patterns)
    for name in names:
        result.named[name] = [node for layer in layers for node in _of_name(layer, name, len(layers) == 1)]
    for pattern in all_patterns:
        nodes: list[Node] = []
        for layer in layers:
            if pattern in layer.patterns:
                nodes.append(layer.patterns[pattern])
            elif layer.rest is not None:
                nodes.append(layer.rest)
        result.patterns[pattern] = nodes
    result.rest = [layer.rest for layer in layers if layer.rest is not None]


def _of_name(layer: Layer, name: str, is_alone: bool) -> list[Node]:
    """The nodes that a layer applies to a property."""
    listed = [layer.first[name]] if name in layer.first else []
    matched = [node for pattern, node in layer.patterns.items() if patterns.is_found(pattern, name)]
    unsure = any(patterns.is_found(pattern, name) is None for pattern in layer.patterns)
    if listed or matched:
        return listed + matched  # undecided patterns stay in `patternProperties`, so they still apply
    return [] if layer.rest is None or (unsure and is_alone) else [layer.rest]


def _require(result: Merged, objects: Objects) -> None:
    """Add the required properties to `named`, because a grammar can only require listed properties."""
    for name in objects.required:
        if name in result.named:
            continue
        verdicts = {pattern: patterns.is_found(pattern, name) for pattern in result.patterns}
        if None in verdicts.values():
            continue
        matched = [node for pattern, nodes in result.patterns.items() if verdicts[pattern] for node in nodes]
        result.named[name] = matched if any(verdicts.values()) else list(result.rest)


def _name(result: Merged, names: list[Node]) -> None:
    """Apply the nodes of `propertyNames` to the listed properties, and keep them if they matter for other names."""
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
    """Yield the nodes of each required property, as far as they are known without matching patterns."""
    for name in objects.required:
        nodes: list[Node] = []
        for layer in objects.layers:
            if name in layer.first:
                nodes.append(layer.first[name])
            elif layer.rest is not None and not layer.patterns:
                nodes.append(layer.rest)
        yield nodes
