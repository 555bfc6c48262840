"""Evaluates whether a value satisfies a node, in three-valued logic. The verdict is None (unknown) if it depends on a
pattern, format or reference that can't be decided here, or on too many nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import partial
from typing import Any

from weft.grammar.schema import patterns
from weft.grammar.schema.nodes import DENIED, FRACTION, Node, Values, key_of, type_of
from weft.grammar.schema.structure import is_whole

Check = Callable[[Any, Node | str], bool | None]
MAX_DEPTH = 40  # nested nodes; deeper, the verdict is unknown
MAX_STEPS = 20_000  # nodes looked at for one value; after more, the verdict is unknown


class _Steps:
    def __init__(self) -> None:
        self.left = MAX_STEPS


def holds(value: Any, node: Node | str, depth: int = 0, steps: _Steps | None = None) -> bool | None:
    """Whether `value` satisfies `node`. None if that is unknown, or takes too many steps or too much depth."""
    if isinstance(node, bool):
        return node
    steps = steps or _Steps()
    steps.left -= 1
    if isinstance(node, str) or depth > MAX_DEPTH or steps.left < 0:
        return None
    results = _Results()
    for key, wanted in node.items():
        if results.add(_keyword(value, key, wanted, node, depth + 1, steps)):
            return False
    return results.total


class _Results:
    """The conjunction of verdicts."""

    def __init__(self) -> None:
        self.total: bool | None = True

    def add(self, verdict: bool | None) -> bool:
        """Add a verdict. Returns True if it is False, which makes the conjunction False."""
        if verdict is None:
            self.total = None
        return verdict is False


def _every(verdicts: Iterable[bool | None]) -> bool | None:
    results = _Results()
    for verdict in verdicts:
        if results.add(verdict):
            return False
    return results.total


def _any(verdicts: Iterable[bool | None]) -> bool | None:
    return _not(_every(_not(verdict) for verdict in verdicts))


def _not(verdict: bool | None) -> bool | None:
    return None if verdict is None else not verdict


def _count(verdicts: Iterable[bool | None], low: int, high: int | None) -> bool | None:
    all_verdicts = list(verdicts)
    num_true, num_unknown = all_verdicts.count(True), all_verdicts.count(None)
    if num_true >= low and (high is None or num_true + num_unknown <= high):
        return True
    return False if num_true + num_unknown < low or (high is not None and num_true > high) else None


def _keyword(
    value: Any, key: str, wanted: Any, node: dict[str, Any], depth: int, steps: _Steps
) -> bool | None:
    def check(item: Any, schema: Node | str) -> bool | None:
        return holds(item, schema, depth, steps)

    if key == "type":
        return any(_is_of(value, name) for name in wanted)
    if key == "enum":
        return key_of(value) in (wanted.keys if isinstance(wanted, Values) else set(map(key_of, wanted)))
    if key == "$ref":
        return check(value, wanted)
    if key == "allOf":
        return _every(check(value, item) for item in wanted)
    if key == "anyOf":
        return _any(check(value, item) for item in wanted)
    if key == "oneOf":
        return _count((check(value, item) for item in wanted), 1, 1)
    if key in ("not", DENIED):
        return _not(check(value, wanted))
    if key == "if":
        verdict = check(value, wanted)
        if verdict is None:
            return _every([check(value, node["then"]), check(value, node["else"])]) or None
        return check(value, node["then" if verdict else "else"])
    kind = type_of(value)
    if kind == "number":
        return _number(value, key, wanted)
    if kind == "string":
        return _string(value, key, wanted)
    if kind == "array":
        return _array(value, key, wanted, node, check)
    return _object(value, key, wanted, node, check) if kind == "object" else True


def _is_of(value: Any, name: str) -> bool:
    kind = type_of(value)
    return kind == name or (name == "integer" and kind == "number" and is_whole(value))


def _number(value: Any, key: str, wanted: Any) -> bool | None:
    if key == "minimum":
        return bool(value >= wanted)
    if key == "maximum":
        return bool(value <= wanted)
    if key == "exclusiveMinimum":
        return bool(value > wanted)
    if key == "exclusiveMaximum":
        return bool(value < wanted)
    if key == "multipleOf":
        return divides(wanted, value)
    return not is_whole(value) if key == FRACTION else True


def divides(step: Any, value: Any) -> bool:
    """Whether `value` is a multiple of `step`. Both are taken as decimals, so 0.3 is a multiple of 0.1."""
    return (Fraction(str(value)) / Fraction(str(step))).denominator == 1


def _string(value: str, key: str, wanted: Any) -> bool | None:
    if key == "minLength":
        return len(value) >= int(wanted)
    if key == "maxLength":
        return len(value) <= int(wanted)
    if key == "pattern":
        return patterns.is_found(wanted, value)
    return None if key == "format" else True


def _array(value: list[Any], key: str, wanted: Any, node: dict[str, Any], check: Check) -> bool | None:
    if key == "minItems":
        return len(value) >= int(wanted)
    if key == "maxItems":
        return len(value) <= int(wanted)
    if key == "uniqueItems":
        return len({key_of(item) for item in value}) == len(value)
    if key == "prefixItems":
        return _every(check(item, schema) for item, schema in zip(value, wanted, strict=False))
    if key == "items":
        return _every(check(item, wanted) for item in value[len(node.get("prefixItems", [])) :])
    if key == "contains":
        schema, low, high = wanted
        return _count((check(item, schema) for item in value), low, high)
    return True


def _object(value: dict[str, Any], key: str, wanted: Any, node: dict[str, Any], check: Check) -> bool | None:
    if key == "required":
        return all(name in value for name in wanted)
    if key == "minProperties":
        return len(value) >= int(wanted)
    if key == "maxProperties":
        return len(value) <= int(wanted)
    if key == "properties":
        return _every(check(value[name], schema) for name, schema in wanted.items() if name in value)
    if key == "propertyNames":
        return _every(check(name, wanted) for name in value)
    if key == "dependentRequired":
        return all(need in value for name, needs in wanted.items() if name in value for need in needs)
    if key == "dependentSchemas":
        return _every(check(value, schema) for name, schema in wanted.items() if name in value)
    if key == "patternProperties":
        pairs = ((pattern, name) for pattern in wanted for name in value)
        return _every(
            _implied(patterns.is_found(pattern, name), partial(check, value[name], wanted[pattern]))
            for pattern, name in pairs
        )
    if key == "additionalProperties":
        return _every(_additional(value, name, wanted, node, check) for name in value)
    return True


def _implied(verdict: bool | None, then: Callable[[], bool | None]) -> bool | None:
    if verdict is False:
        return True
    result = then()
    return result if verdict else (result or None)


def _additional(
    value: dict[str, Any], name: str, wanted: Node, node: dict[str, Any], check: Check
) -> bool | None:
    if name in node.get("properties", {}):
        return True
    named = _any(patterns.is_found(pattern, name) for pattern in node.get("patternProperties", {}))
    return _implied(_not(named), partial(check, value[name], wanted))
