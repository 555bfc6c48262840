"""The JSON schemas that structural tags hold, and what XGrammar would ignore of them in silence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from weft.grammar import json_schema, xgrammar_schema
from weft.grammar.notes import Found, Place, shortened

MAX_BEGIN = 60


def schemas(tag: Any) -> Iterator[tuple[Place | None, dict[str, Any], str]]:
    """Every format with a JSON schema inside a structural tag, where it is, and what the tag around it begins with."""
    pending: list[tuple[Place | None, Any, str]] = [(None, tag, "")]
    while pending:
        place, node, begin = pending.pop()
        if isinstance(node, list):
            pending += [(Place(place, i), item, begin) for i, item in enumerate(node)]
        elif isinstance(node, dict):
            if isinstance(node.get("begin"), str):
                begin = node["begin"]
            if node.get("type") == "json_schema" and "json_schema" in node:
                yield place, node, begin
            else:
                pending += [(Place(place, key), value, begin) for key, value in node.items()]


def check(tag: Any) -> None:
    """Raises `GuideError` where a schema inside is none."""
    for _, form, _ in schemas(tag):
        json_schema.check(form["json_schema"])


def opened(source: str) -> str:
    """A tag's text, whose schemas leave objects open that name properties."""
    tag = json.loads(source)
    for _, form, _ in schemas(tag):
        form["json_schema"] = xgrammar_schema.opened_schema(form["json_schema"], open_objects=True)
    return json.dumps(tag)


def not_enforced(tag: Any) -> Found:
    """What XGrammar does not enforce of the schemas inside, and where."""
    for place, form, begin in schemas(tag):
        which = f" (in the tag that begins with {shortened(repr(begin), MAX_BEGIN)})" if begin else ""
        within = Place(place, "json_schema")
        for inner, what in xgrammar_schema.not_enforced(
            form["json_schema"], bool(form.get("any_order")), within=within
        ):
            yield inner, what + which
