"""Reads nodes into the facts of a branch (`facts.py`). Conjunctions are merged at once; choices become forks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from weft.grammar.schema import formats, patterns
from weft.grammar.schema.evaluate import holds
from weft.grammar.schema.facts import Arrays, Branch, Fork, Layer, Objects, Strings
from weft.grammar.schema.negate import absent, denied, having
from weft.grammar.schema.nodes import (
    DENIED,
    DERIVED,
    FRACTION,
    Node,
    NodeCache,
    TooMuch,
    key_of,
    others,
    type_of,
)

LAYER = ("properties", "patternProperties", "additionalProperties")
MAX_STEPS = 10_000  # nodes read for one schema, over all its alternatives; more: `TooMuch`


class Reader:
    """Reads nodes into branches, and caches derived nodes. Raises `TooMuch` after `MAX_STEPS` nodes."""

    def __init__(self) -> None:
        self._denied = NodeCache[list[Node]]()
        self._made = NodeCache[Node]()
        self._steps = 0

    def settle(self, branch: Branch) -> bool:
        """Read all pending nodes of a branch. Returns False if no value can satisfy the branch."""
        while branch.pending:
            node = branch.pending.pop(0)
            if node is False or (isinstance(node, dict) and id(node) in branch.refused):
                return False
            if isinstance(node, bool) or id(node) in branch.read:
                continue
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise TooMuch("too many alternatives")
            branch.read[id(node)] = node
            if not self._read(branch, node):
                return False
        return self._filter(branch) and self._prune(branch)

    def make(self, kind: str, node: dict[str, Any], name: str = "", *, made: Callable[[], Node]) -> Node:
        """A node derived from another one, by kind and name. It is the same object each time, because nodes are
        compared by identity."""
        return self._made.get([node], made, kind, name)

    def _read(self, branch: Branch, node: dict[str, Any]) -> bool:
        keys = list(node)
        first_of_layer = next((i for i, key in enumerate(keys) if key in LAYER), None)
        if first_of_layer is not None and any(key in ("$ref", "allOf") for key in keys[:first_of_layer]):
            # Keep the order of properties: a `$ref` or `allOf` written before the node's own properties must be read
            # first. So the own properties become a separate node, which is read after it.
            layer = {key: node[key] for key in (*LAYER, DERIVED) if key in node}
            branch.pending[:0] = [self.make("layer", node, made=lambda: layer)]
            keys = [key for key in keys if key not in LAYER]
        elif first_of_layer is not None:
            self._layer(branch, node)
        applied: list[Node] = []
        for key in keys:
            if not self._keyword(branch, node, key, node[key], applied):
                return False
        branch.pending[:0] = applied
        return True

    def _layer(self, branch: Branch, node: dict[str, Any]) -> None:
        branch.is_blank = False
        named, matched = node.get("properties", {}), node.get("patternProperties", {})
        rest = node.get("additionalProperties")
        branch.objects.layers.append(Layer(named, matched, rest, DERIVED in node))

    def _keyword(
        self, branch: Branch, node: dict[str, Any], key: str, value: Any, applied: list[Node]
    ) -> bool:
        if key == "$ref":
            branch.unresolved += [value] if isinstance(value, str) else []
            applied += [] if isinstance(value, str) else [value]
            branch.is_blank &= not isinstance(value, str)
        elif key == "allOf":
            applied += value
        elif key == "anyOf":
            branch.forks.append(Fork([[item] for item in value]))
        elif key == "oneOf":
            branch.forks.append(Fork([[item] for item in value], exactly_one=True))
        elif key == "if":
            no = self.make("not", node, "if", made=lambda: {"not": value})
            branch.forks.append(Fork([[value, node["then"]], [no, node["else"]]]))
        elif key == "not":
            return self._not(branch, value)
        elif key == DENIED:
            branch.residue.append(value)
            branch.is_blank = False
        elif key in ("dependentRequired", "dependentSchemas"):
            self._dependent(branch, node, key, value)
        elif key not in LAYER:
            branch.is_blank = False
            self._fact(branch, node, key, value)
        return True

    def _not(self, branch: Branch, inner: Node) -> bool:
        if isinstance(inner, bool):
            return not inner
        if id(inner) in branch.read:
            return False
        branch.refused[id(inner)] = inner
        alternatives = self._denied.get([inner], lambda: denied(inner))
        branch.forks.append(Fork([[item] for item in alternatives], denied=inner))
        return True

    def _dependent(self, branch: Branch, node: dict[str, Any], key: str, needs: dict[str, Any]) -> None:
        for name, need in needs.items():
            without = self.make("without", node, name, made=partial(absent, name))
            other = self.make("other", node, made=lambda: {"type": others("object")})
            holder = self.make("with", node, name, made=partial(having, name))
            then = (
                need
                if key == "dependentSchemas"
                else self.make("needs", node, name, made=partial(_requiring, need))
            )
            branch.forks.append(Fork([[other], [without], [holder, then]]))

    def _fact(self, branch: Branch, node: dict[str, Any], key: str, value: Any) -> None:
        numbers, strings, arrays, objects = branch.numbers, branch.strings, branch.arrays, branch.objects
        if key == "type":
            names = tuple("number" if name == "integer" else name for name in value)
            if "number" in names and "number" not in value:
                self._integer(branch, True)
            branch.types = tuple(name for name in branch.types if name in names)
        elif key == FRACTION:
            self._integer(branch, False)
        elif key == "enum":
            wanted = {key_of(item) for item in value}
            known = value if branch.values is None else branch.values
            distinct = {key_of(item): item for item in known}
            branch.values = [item for text, item in distinct.items() if text in wanted]
        elif key in ("minimum", "exclusiveMinimum"):
            numbers.at_least(value, key != "minimum")
        elif key in ("maximum", "exclusiveMaximum"):
            numbers.at_most(value, key != "maximum")
        elif key == "multipleOf":
            numbers.multiple_of(value)
        elif key == "pattern":
            pattern = patterns.without_look_around(value)
            strings.patterns += [pattern] if pattern not in strings.patterns else []
        elif key == "format" and value == "regex":
            self._fact(branch, node, "pattern", formats.REGEX)
        elif key == "format":
            strings.formats += [value] if value not in strings.formats else []
        elif key in ("minLength", "minItems", "minProperties"):
            part = _sized(branch, key)
            part.low = max(part.low, value)
        elif key in ("maxLength", "maxItems", "maxProperties"):
            part = _sized(branch, key)
            part.high = value if part.high is None else min(part.high, value)
        elif key == "required":
            objects.required |= dict.fromkeys(value)
        elif key == "propertyNames":
            objects.names.append(value)
        elif key == "uniqueItems":
            arrays.unique = True
        elif key == "contains":
            arrays.contains.append(value)
        elif key in ("prefixItems", "items") and not (key == "items" and "prefixItems" in node):
            arrays.layers.append(Layer(node.get("prefixItems", []), {}, node.get("items")))

    def _integer(self, branch: Branch, wanted: bool) -> None:
        if branch.numbers.integer is (not wanted):
            branch.types = tuple(name for name in branch.types if name != "number")
        branch.numbers.integer = wanted

    def _filter(self, branch: Branch) -> bool:
        """Drop the enumerated values that violate the nodes read so far. Returns False if none is left."""
        if branch.values is None or branch.is_settled:
            return branch.values is None or bool(branch.values)
        verdicts = [self._verdict(branch, value) for value in branch.values]
        branch.values = [
            value for value, verdict in zip(branch.values, verdicts, strict=True) if verdict is not False
        ]
        branch.is_settled = None not in verdicts
        if branch.is_settled:
            branch.forks, branch.unmade, branch.residue = [], [], []
        kinds = {type_of(value) for value in branch.values}
        branch.types = tuple(name for name in branch.types if name in kinds)
        return bool(branch.values)

    def _verdict(self, branch: Branch, value: Any) -> bool | None:
        total: bool | None = True
        for node in branch.read.values():
            verdict = holds(value, node)
            if verdict is False:
                return False
            total = None if verdict is None else total
        return total

    def _prune(self, branch: Branch) -> bool:
        """Drop the types whose facts exclude all values. Returns False if none is left."""
        if branch.is_settled:
            return True
        empty = {
            "number": branch.numbers.is_empty(),
            "string": _no_string(branch.strings),
            "array": _is_above(branch.arrays.low, branch.arrays.high),
            "object": self._no_object(branch),
        }
        branch.types = tuple(name for name in branch.types if not empty.get(name))
        return bool(branch.types)

    def _no_object(self, branch: Branch) -> bool:
        objects = branch.objects
        if _is_above(max(objects.low, len(objects.required)), objects.high):
            return True
        return any(
            layer.first.get(name) is False
            or (layer.rest is False and not layer.patterns and name not in layer.first)
            for layer in objects.layers
            for name in objects.required
        )


def _requiring(names: list[str]) -> Node:
    return {"required": names, DERIVED: True}


def _no_string(strings: Strings) -> bool:
    if _is_above(strings.low, strings.high) or formats.are_apart(strings.formats):
        return True
    return any(
        _is_above(low, strings.high) or _is_above(strings.low, high)
        for low, high in map(patterns.lengths, strings.patterns)
    )


def _sized(branch: Branch, key: str) -> Strings | Arrays | Objects:
    """The facts to which a size keyword such as `minItems` applies."""
    return branch.strings if "Length" in key else branch.arrays if "Items" in key else branch.objects


def _is_above(low: int, high: int | None) -> bool:
    return high is not None and low > high
