"""Translates JSON schemas whose properties may come in any order to LLGuidance's Lark.

For a JSON schema LLGuidance fixes the order of properties, so each further order would need an alternative of its own.
In Lark a rule may have an integer parameter. Here it is the set of the properties already written, one bit each. Parts
without such objects stay JSON schemas (`%json`) inside the grammar.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from weft.grammar.schema import patterns

MAX_NAMES = 64
"""The number of bits of a rule's parameter."""
MAX_DEPTH = 100
"""The deepest nesting of schemas. LLGuidance's compiler recurses with it."""
MAX_GROWTH = 8
MIN_GROWN = 8192
CHARACTERS = r'/"([^"\\\x00-\x1F\x7F]|\\[nrbtf"\\])*"/'
"""A regex of property names in which each character has one form, so that no listed name can come in another
spelling."""
OBJECT = {"type", "properties", "patternProperties", "additionalProperties", "required", "minProperties"}
ARRAY = {"type", "items", "prefixItems", "minItems", "maxItems"}
REFERENCE = "#/$defs/"


class _NoCounterpart(Exception):
    """The schema can't be expressed in this form."""


def in_any_order(text: str) -> str | None:
    """Translate a prepared JSON schema to Lark, with properties in any order. Returns None if a part can't be
    expressed in Lark, if the schema nests too deep, or if the grammar would be too large."""
    schema = json.loads(text)
    try:
        return _Grammar(schema, MAX_GROWTH * max(MIN_GROWN, len(text))).text()
    except (_NoCounterpart, RecursionError):
        return None


class _Grammar:
    def __init__(self, schema: dict[str, Any], room: int) -> None:
        self._room = room  # the characters that may still be written
        self._options = schema.pop("x-guidance")
        self._definitions = schema.pop("$defs", {})
        self._root = schema
        self._comma = f"/{self._options.get('item_separator', ',')}/"
        self._colon = f"/{self._options.get('key_separator', ':')}/"
        self._lines: list[str] = []
        self._rules: dict[str, str] = {}  # the name of a rule for each reference, and each schema as text
        self._num_objects = 0
        self._with_order = self._find_with_order()

    def text(self) -> str:
        """The whole grammar."""
        blanks = self._options.get("whitespace_pattern")
        head = [f'%llguidance {{"ignore_once": true}}\n%ignore /{blanks}/'] if blanks else []
        return "\n".join([*head, f"start: {self._reference('#', 0)}", *self._lines]) + "\n"

    # The parts that have an order

    def _find_with_order(self) -> set[str]:
        """The references to schemas that contain an object with several property orders, directly or through other
        references."""
        nodes = {"#": self._root} | {REFERENCE + name: node for name, node in self._definitions.items()}
        users: dict[str, list[str]] = {}
        pending = []
        for name, node in nodes.items():
            parts = list(_parts(node))
            if any(_has_order(part) for part in parts):
                pending.append(name)
            for part in parts:
                if "$ref" in part:
                    users.setdefault(part["$ref"], []).append(name)
        with_order: set[str] = set()
        while pending:
            name = pending.pop()
            if name not in with_order:
                with_order.add(name)
                pending += users.get(name, ())
        return with_order

    def _is_ordered(self, node: Any) -> bool:
        return any(_has_order(part) or part.get("$ref") in self._with_order for part in _parts(node))

    # Rules

    def _rule(self, body: str) -> str:
        name = f"r{len(self._lines)}"
        self._line(f"{name}: {body}")
        return name

    def _line(self, line: str) -> None:
        self._room -= len(line)
        if self._room < 0:
            raise _NoCounterpart
        self._lines.append(line)

    def _reference(self, reference: str, depth: int) -> str:
        if reference in self._rules:
            return self._rules[reference]
        node = self._root if reference == "#" else self._definitions.get(reference.removeprefix(REFERENCE))
        if node is None:
            raise _NoCounterpart
        name = f"d{len(self._rules)}"
        self._rules[reference] = name
        self._line(f"{name}: {self._of(node, depth + 1)}")
        return name

    def _of(self, node: Any, depth: int) -> str:
        """Translate a schema. Returns an expression for a rule's body."""
        if depth > MAX_DEPTH:
            raise _NoCounterpart
        if isinstance(node, dict) and set(node) == {"$ref"}:
            return self._reference(node["$ref"], depth)
        if not self._is_ordered(node):
            return self._json(node)
        if set(node) == {"anyOf"}:
            return self._choice(node["anyOf"], depth)
        if node.get("type") == "object" and set(node) <= OBJECT:
            return self._object(node, depth)
        if node.get("type") == "array" and set(node) <= ARRAY:
            return self._array(node, depth)
        raise _NoCounterpart

    def _json(self, node: Any) -> str:
        """Embed a schema without such objects as `%json`, with the definitions that it refers to."""
        if node is False:
            raise _NoCounterpart
        schema = {**(node if isinstance(node, dict) else {}), "x-guidance": self._options}
        needed, pending = {}, [node]
        while pending:
            for part in _parts(pending.pop()):
                # Only a compile of the schema by itself shows whether LLGuidance supports this `oneOf`.
                if "oneOf" in part:
                    raise _NoCounterpart
                name = part.get("$ref", "").removeprefix(REFERENCE)
                if name and name not in needed:
                    if name not in self._definitions:
                        raise _NoCounterpart
                    needed[name] = self._definitions[name]
                    pending.append(needed[name])
        if needed:
            schema["$defs"] = needed
        text = json.dumps(schema)
        if text not in self._rules:
            self._rules[text] = self._rule(f"%json {text}")
        return self._rules[text]

    def _choice(self, choices: list[Any], depth: int) -> str:
        alternatives = [self._of(choice, depth + 1) for choice in choices if self._is_ordered(choice)]
        plain = [choice for choice in choices if choice is not False and not self._is_ordered(choice)]
        if plain:
            alternatives.append(self._json({"anyOf": plain} if len(plain) > 1 else plain[0]))
        if not alternatives:
            raise _NoCounterpart
        return self._rule(" | ".join(alternatives))

    def _array(self, node: dict[str, Any], depth: int) -> str:
        prefix = [self._of(item, depth + 1) for item in node.get("prefixItems", ())]
        rest, min_items, max_items = node.get("items", True), node.get("minItems", 0), node.get("maxItems")
        if max_items is not None:
            prefix = prefix[:max_items]
        body = ""
        if rest is not False and (max_items is None or max_items > len(prefix)):
            low, high = max(min_items - len(prefix), 0), "" if max_items is None else max_items - len(prefix)
            item = self._of(rest, depth + 1)
            if prefix:
                body = f"({self._comma} {item}){{{low},{high}}}"
            else:
                low, high = max(low - 1, 0), "" if max_items is None else max_items - 1
                body = f"{item} ({self._comma} {item}){{{low},{high}}}"
                body = body if min_items else f"({body})?"
        elif min_items > len(prefix):
            raise _NoCounterpart
        for i in reversed(range(len(prefix))):
            body = f"{self._comma if i else ''} {prefix[i]} {body}"
            body = body if i < min_items else f"({body})?"
        return self._rule(f'"[" {body} "]"')

    def _object(self, node: dict[str, Any], depth: int) -> str:
        properties, required = node.get("properties", {}), list(dict.fromkeys(node.get("required", ())))
        named = {name: value for name, value in properties.items() if value is not False}
        if len(named) > MAX_NAMES or not named.keys() >= set(required):
            raise _NoCounterpart
        # Required properties have the lowest bits, so that one `is_ones` condition checks them all.
        names = [*required, *(name for name in named if name not in required)]
        if node.get("minProperties", 0) > 1:
            raise _NoCounterpart
        is_empty = not required and not node.get("minProperties")
        others = self._others(node, list(properties), depth)
        if not names:
            inner = "" if not others else f"({others})?" if is_empty else others
            return self._rule(f'"{{" {inner} "}}"')
        number = self._num_objects
        self._num_objects += 1
        members_rule, named_rule = f"s{number}", f"n{number}"
        after_named, after_others = f"a{number}", f"t{number}"
        members = [
            f"{_quoted(json.dumps(name, ensure_ascii=False))} {self._colon} {self._of(named[name], depth + 1)}"
            f" {after_named}::set_bit({i}) %if bit_clear({i})"
            for i, name in enumerate(names)
        ]
        done = f" %if is_ones([0:{len(required)}])" if required else ""
        more = f" %if not(is_ones([0:{len(names)}]))"
        self._line(f"{named_rule}::_: " + " | ".join(members))
        first = members_rule if others else named_rule
        self._line(f'{after_named}::_: ""{done} | {self._comma} {first}::_{"" if others else more}')
        if others:
            # A run of unlisted properties is one symbol, because the parser's work grows with the number of symbols.
            self._line(f"{members_rule}::_: {named_rule}::_ | {others} {after_others}::_")
            self._line(f'{after_others}::_: ""{done} | {self._comma} {named_rule}::_{more}')
        empty = '"{" "}" | ' if is_empty else ""
        return self._rule(f'{empty}"{{" {first}::0 "}}"')

    def _others(self, node: dict[str, Any], taken: list[str], depth: int) -> str:
        """An expression for one or more unlisted properties; "" if the object allows none."""
        rest = node.get("additionalProperties", True)
        by_pattern = list(node.get("patternProperties", {}).items())
        members = []
        if len(by_pattern) > 1 or any(
            patterns.is_found(by_pattern[0][0], name) is None for name in taken if by_pattern
        ):
            raise _NoCounterpart  # a name that matches several patterns must satisfy all their schemas
        if not by_pattern:
            members += [(self._other_name(taken), rest)] if rest is not False else []
        else:
            pattern, value = by_pattern[0]
            inside = [name for name in taken if patterns.is_found(pattern, name)]
            outside = patterns.inverse(pattern) if rest is not False else None
            if value is not False:
                members.append((self._name_like(pattern, inside), value))
            if outside is not None:
                members.append(
                    (self._name_like(outside, [name for name in taken if name not in inside]), rest)
                )
            elif rest is not False:
                raise _NoCounterpart
        if not members:
            return ""
        pairs = [f"{name} {self._colon} {self._of(value, depth + 1)}" for name, value in members]
        pair = self._rule(" | ".join(pairs))
        return self._rule(f"{pair} ({self._comma} {pair})*")

    def _other_name(self, taken: list[str]) -> str:
        if not taken:
            return self._json({"type": "string"})
        name = f"N{len(self._lines)}"
        spelled = " | ".join(_quoted(json.dumps(other, ensure_ascii=False)) for other in taken)
        self._line(f"{name}: {CHARACTERS} & ~({spelled})")
        return name

    def _name_like(self, pattern: str, taken: list[str]) -> str:
        schema: dict[str, Any] = {"type": "string", "pattern": pattern}
        if taken:
            schema = {"allOf": [schema, {"type": "string", "pattern": patterns.none_of(taken)}]}
        return self._json(schema)


def _quoted(text: str) -> str:
    """A Lark string literal."""
    return json.dumps(text)


def _parts(node: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and every schema inside it."""
    pending = [node]
    while pending:
        part = pending.pop()
        if not isinstance(part, dict):
            continue
        yield part
        for key, value in part.items():
            if key in ("properties", "patternProperties"):
                pending += value.values()
            elif key in ("anyOf", "allOf", "oneOf", "prefixItems"):
                pending += value
            elif key in ("items", "additionalProperties", "not"):
                pending.append(value)


def _has_order(node: dict[str, Any]) -> bool:
    """Whether an object's properties could come in another order."""
    num_named = sum(value is not False for value in node.get("properties", {}).values())
    is_open = node.get("additionalProperties", True) is not False or "patternProperties" in node
    return num_named > 1 or (num_named == 1 and is_open)
