"""Translates schemas to older drafts of JSON Schema."""

from __future__ import annotations

from typing import Any

from weft.grammar.schema.structure import subschemas

Node = dict[str, Any]
DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}


def of_draft(found: Node, draft: int) -> Node:
    """Translate a schema of the latest draft to another draft in place, and declare that draft. Keywords without a
    counterpart are dropped."""
    for _, node in list(subschemas(found)):
        if draft < 2020:
            _before_2020(node)
        if draft < 2019:
            _before_2019(node, "$id" if draft > 4 else "id")
        if draft < 7:
            for key in ("if", "then", "else"):
                node.pop(key, None)
        if draft < 6:
            _of_draft_4(node)
    return {"$schema": DRAFTS[draft], **found}


def _before_2020(node: Node) -> None:
    # In older drafts, `jsonschema` handles these wrongly next to `additionalProperties` and `items`.
    for key in ("unevaluatedProperties", "unevaluatedItems"):
        node.pop(key, None)
    node.pop("$dynamicAnchor", None)
    if "$dynamicRef" in node:
        del node["$dynamicRef"]
        node["$ref"] = "#/$defs/z"
    if "prefixItems" in node:
        if "items" in node:
            node["additionalItems"] = node["items"]
        node["items"] = node.pop("prefixItems")


def _before_2019(node: Node, id_key: str) -> None:
    if "$anchor" in node:
        node[id_key] = f"#{node.pop('$anchor')}"
    for key in ("minContains", "maxContains"):
        node.pop(key, None)
    if "$ref" in node:
        node["$ref"] = node["$ref"].replace("$defs", "definitions")
    if "$defs" in node:
        node["definitions"] = node.pop("$defs")
    dependencies = {**node.pop("dependentRequired", {}), **node.pop("dependentSchemas", {})}
    if dependencies:
        node["dependencies"] = dependencies


def _of_draft_4(node: Node) -> None:
    for key in ("contains", "propertyNames"):
        node.pop(key, None)
    if "const" in node:
        node["enum"] = [node.pop("const")]
    for key, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if key in node:
            node[plain] = node[key]
            node[key] = True
