"""Parses schemas of any draft to nodes (`nodes.py`). Drops annotations, and keywords that a draft does not have."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from weft.grammar.notes import Place
from weft.grammar.schema import structure as json_schema
from weft.grammar.schema.nodes import FORMATS, Node, TooMuch, Values

DRAFTS = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}
SINCE = {
    6: ("const", "contains", "propertyNames"),
    7: ("if", "then", "else"),
    2019: ("dependentRequired", "dependentSchemas", "minContains", "maxContains", "$recursiveRef"),
    2020: ("prefixItems", "$dynamicRef"),
}
FIRST = {keyword: draft for draft, keywords in SINCE.items() for keyword in keywords}
FIRST |= {"unevaluatedProperties": 2019, "unevaluatedItems": 2019}
# Formats of the specification that no grammar library supports. They are kept, so that a note can name them.
OTHER_FORMATS = (
    "regex",
    "idn-email",
    "idn-hostname",
    "iri",
    "iri-reference",
    "uri-reference",
    "uri-template",
)
KNOWN_FORMATS = (*FORMATS, *OTHER_FORMATS, "json-pointer", "relative-json-pointer")
APPLIED = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "$dynamicRef", "$recursiveRef")
SCHEMAS = ("not", "additionalProperties", "propertyNames")
LISTS = ("allOf", "anyOf", "oneOf")
MAPS = ("properties", "patternProperties", "dependentSchemas")
SOURCES = {"const": "enum", "$dynamicRef": "allOf", "$recursiveRef": "allOf"}
COUNTS = ("minLength", "minItems", "minProperties", "maxLength", "maxItems", "maxProperties")


def draft_of(schema: Any) -> int:
    """The draft that a schema declares; by default the newest. Raises `TooMuch` for draft 3."""
    name = schema.get("$schema") if isinstance(schema, dict) else None
    if isinstance(name, str) and "draft-03" in name:
        raise TooMuch("draft 3")
    return DRAFTS.get(name.rstrip("#"), 2020) if isinstance(name, str) else 2020


class Document:
    """Parses one schema to nodes, one for each schema object. `places` has the place of each node, by `id`."""

    def __init__(self, schema: Any) -> None:
        self.draft = draft_of(schema)
        self.references = References(schema, self.draft)
        self.places: dict[int, Place | None] = {}
        self._schema = schema
        self._nodes: dict[int, Node] = {}
        self._pending: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def root(self) -> Node:
        """The node of the whole schema."""
        return self.node(self._schema)

    def node(self, raw: Any) -> Node:
        """The node of a subschema. Raises `TooMuch` for a value that is not a schema, and for keywords that are
        invalid or can't be expressed."""
        node = self._shell(raw)
        while self._pending:
            self._fill(*self._pending.pop())
        return node

    def _shell(self, raw: Any) -> Node:
        """The node of a subschema. A new one is empty and is filled later, so that cyclic references terminate."""
        if isinstance(raw, bool):
            return raw
        if not isinstance(raw, dict):
            raise TooMuch("not a schema")
        if id(raw) not in self._nodes:
            node: dict[str, Any] = {}
            self._nodes[id(raw)] = node
            self.places[id(node)] = self.references.places.get(id(raw))
            self._pending.append((raw, node))
        return self._nodes[id(raw)]

    def _fill(self, raw: dict[str, Any], node: dict[str, Any]) -> None:
        if isinstance(raw.get("$ref"), str):
            node["$ref"] = self._target(raw, raw["$ref"])
            if self.draft <= 7:
                return
        known = {key: value for key, value in raw.items() if FIRST.get(key, 0) <= self.draft}
        for key, value in known.items():
            test = json_schema.CHECKS.get(key, (None,))[0]
            if test is not None and not test(value):
                raise TooMuch(f"{key} has a value of the wrong type")
        self._plain(known, node)
        self._numbers(known, node)
        self._applied(known, node)
        self._items(known, node)
        self._unevaluated(known, node)
        # Restore the order of keywords, because the order of properties depends on it (`read.py`).
        order = {SOURCES.get(key, key): i for i, key in enumerate(raw)}
        for key in sorted(node, key=lambda key: order.get(key, -1)):
            node[key] = node.pop(key)

    def _target(self, raw: dict[str, Any], reference: str) -> Node | str:
        try:
            return self._shell(self.references.resolve(raw, reference))
        except (KeyError, ValueError):
            return reference

    def _plain(self, raw: dict[str, Any], node: dict[str, Any]) -> None:
        if "type" in raw:
            node["type"] = tuple([raw["type"]] if isinstance(raw["type"], str) else raw["type"])
        value_lists = [
            Values(values)
            for values in ([raw["const"]] if "const" in raw else None, raw.get("enum"))
            if values
        ]
        if value_lists:
            node["enum"] = value_lists[0]
        if value_lists[1:]:
            node["allOf"] = [{"enum": value_lists[1]}]
        for key in COUNTS:
            if key in raw and (raw[key] or key.startswith("max")):
                node[key] = int(raw[key])
        for key in ("pattern", "required"):
            if raw.get(key):
                node[key] = raw[key]
        if raw.get("uniqueItems"):
            node["uniqueItems"] = True
        if raw.get("format") in KNOWN_FORMATS:
            node["format"] = raw["format"]

    def _numbers(self, raw: dict[str, Any], node: dict[str, Any]) -> None:
        for key in ("minimum", "maximum", "multipleOf"):
            if key in raw:
                node[key] = raw[key]
        for key, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            value = raw.get(key)
            if value is True and bound in raw:  # in draft 4 it is a flag
                node[key] = node.pop(bound)
            elif isinstance(value, int | float) and not isinstance(value, bool) and self.draft > 4:
                node[key] = value
        if any(isinstance(value, float) and not math.isfinite(value) for value in node.values()):
            raise TooMuch("a number without end")

    def _applied(self, raw: dict[str, Any], node: dict[str, Any]) -> None:
        for key in SCHEMAS:
            if key in raw:
                node[key] = self._shell(raw[key])
        for key in LISTS:
            if key in raw:
                node[key] = node.get(key, []) + [self._shell(item) for item in raw[key]]
        for key in MAPS:
            if raw.get(key):
                node[key] = {name: self._shell(item) for name, item in raw[key].items()}
        if "if" in raw and ("then" in raw or "else" in raw):
            for key in ("if", "then", "else"):
                node[key] = self._shell(raw.get(key, True))
        needs = dict(raw.get("dependentRequired", {}))
        for name, need in raw.get("dependencies", {}).items():
            if isinstance(need, list):
                needs[name] = [*needs.get(name, []), *need]
            elif isinstance(need, str):
                needs[name] = [*needs.get(name, []), need]
            else:
                schemas = node.setdefault("dependentSchemas", {})
                schemas[name] = (
                    self._shell(need)
                    if name not in schemas
                    else {"allOf": [schemas[name], self._shell(need)]}
                )
        if needs:
            if not all(
                isinstance(need, list) and all(isinstance(n, str) for n in need) for need in needs.values()
            ):
                raise TooMuch("dependentRequired holds something else than names")
            node["dependentRequired"] = needs
        for key in ("$dynamicRef", "$recursiveRef"):
            if key in raw:
                node.setdefault("allOf", []).append({"$ref": self._dynamic(raw, key)})

    def _dynamic(self, raw: dict[str, Any], key: str) -> Node | str:
        """The target of a dynamic reference. It is treated as a `$ref`, so it must have only one possible target."""
        name = raw[key].partition("#")[2] if isinstance(raw[key], str) else ""
        if len(self.references.dynamic.get(name, [])) > 1 or (key == "$recursiveRef" and raw[key] != "#"):
            raise TooMuch(f"{key} that may lead to several places")
        return self._target(raw, raw[key])

    def _items(self, raw: dict[str, Any], node: dict[str, Any]) -> None:
        prefix, rest = raw.get("prefixItems"), raw.get("items")
        if isinstance(rest, list):  # up to draft 2019-09, a list in `items` means `prefixItems`
            prefix, rest = rest, raw.get("additionalItems")
        if prefix is not None:
            node["prefixItems"] = [self._shell(item) for item in prefix]
        if rest is not None:
            node["items"] = self._shell(rest)
        if "contains" in raw:
            low, high = raw.get("minContains", 1), raw.get("maxContains")
            if low or high is not None:
                most = None if high is None else int(high)
                node["contains"] = (self._shell(raw["contains"]), int(low), most)

    def _unevaluated(self, raw: dict[str, Any], node: dict[str, Any]) -> None:
        for key, evaluating in (
            ("unevaluatedProperties", "additionalProperties"),
            ("unevaluatedItems", "items"),
        ):
            if (
                key not in raw
                or raw[key] is True
                or (evaluating in raw and not isinstance(raw[evaluating], list))
            ):
                continue
            if any(name in raw for name in APPLIED) or (key == "unevaluatedItems" and "contains" in raw):
                raise TooMuch(f"{key} beside schemas that hold at once")
            if evaluating not in node:
                node[evaluating] = self._shell(raw[key])


NOT_SCHEMAS = ("enum", "const", "default", "examples")


class References:
    """Resolves `$ref` in a schema by the rules of its draft: JSON pointers, `$id` and anchors. `places` has the place
    of each object, by `id`."""

    def __init__(self, root: Any, draft: int) -> None:
        self._id = "id" if draft <= 4 else "$id"
        self._draft = draft
        self.places: dict[int, Place | None] = {}
        self._bases: dict[int, str] = {}
        self._resources: dict[str, Any] = {"": root}
        self._anchors: dict[tuple[str, str], Any] = {}
        self.dynamic: dict[str, list[Any]] = {}
        self._walk(root)

    def resolve(self, node: dict[str, Any], reference: str) -> Any:
        """The target of a reference in `node`. Raises `KeyError` if it is not in this document, and `ValueError` if
        it is not a URI."""
        base, fragment = urldefrag(urljoin(self._bases.get(id(node), ""), reference))
        if base not in self._resources and reference.startswith("#"):
            base, fragment = self._bases.get(id(node), ""), reference[1:]
        resource = self._resources[base]
        if fragment and not fragment.startswith("/"):
            return self._anchors[base, fragment]
        return json_schema.pointed(resource, map(unquote, fragment.split("/")[1:]))

    def _walk(self, root: Any) -> None:
        pending: list[tuple[Place | None, Any, str]] = [(None, root, "")]
        while pending:
            place, node, base = pending.pop()
            if isinstance(node, list):
                pending += [(Place(place, i), item, base) for i, item in enumerate(node)]
            if not isinstance(node, dict):
                continue
            base = self._enter(node, base)
            self.places[id(node)] = place
            self._bases[id(node)] = base
            pending += [
                (Place(place, key), value, base)
                for key, value in node.items()
                if isinstance(value, dict | list) and key not in NOT_SCHEMAS
            ]

    def _enter(self, node: dict[str, Any], base: str) -> str:
        """Register the `$id` and anchors of an object. Returns the base URI for its contents."""
        name = node.get(self._id)
        if isinstance(name, str) and not (self._draft <= 7 and "$ref" in node):
            if name.startswith("#"):
                self._anchors.setdefault((base, name[1:]), node)
            else:
                base = urldefrag(urljoin(base, name))[0]
                self._resources.setdefault(base, node)
        for key in ("$anchor", "$dynamicAnchor"):
            anchor = node.get(key)
            if isinstance(anchor, str) and self._draft > 7:
                self._anchors.setdefault((base, anchor), node)
                if key == "$dynamicAnchor":
                    self.dynamic.setdefault(anchor, []).append(node)
        return base
