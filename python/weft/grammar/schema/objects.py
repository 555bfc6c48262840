"""What several schemas together say of an object's properties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from weft.grammar.schema import patterns
from weft.grammar.schema.evaluate import holds
from weft.grammar.schema.facts import Layer, Objects
from weft.grammar.schema.nodes import Node, TooMuch

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
