"""The JSON schemas that structural tags hold: as XGrammar takes them, and what it would ignore of them in silence."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from weft.errors import GuideError
from weft.grammar.notes import Found, Place, shortened, where
from weft.grammar.schema import structure as json_schema
from weft.grammar.schema.rewrite import Rewritten, rewrite
from weft.grammar.tag_forms import tag_of
from weft.grammar.xgrammar import schema as xgrammar_schema
from weft.grammar.xgrammar.patterns import check_regex

MAX_BEGIN = 60


@dataclass(frozen=True)
class _Form:
    """A schema inside a tag: where it is, what the tag around it begins with, what is compiled for it, and whether it
    is to be enforced whole though the guide may not be."""

    place: Place
    begin: str
    any_order: bool
    found: Rewritten
    is_open: bool
    is_strict: bool
    in_json: bool


@dataclass(frozen=True)
class Tag:
    """A structural tag as XGrammar takes it."""

    text: str
    forms: tuple[_Form, ...]

    @property
    def names_and_others(self) -> bool:
        """Whether some object has schemas for names, and may have others."""
        return any(xgrammar_schema.names_and_others(form.found.schema, form.is_open) for form in self.forms)

    def not_enforced(self, *, of_strict: bool = False) -> Found:
        """What XGrammar does not enforce of the schemas inside, or of the strict ones alone, and where."""
        for form in self.forms:
            if of_strict and not form.is_strict:
                continue
            which = (
                f" (in the tag that begins with {shortened(repr(form.begin), MAX_BEGIN)})"
                if form.begin
                else ""
            )
            for place, what in xgrammar_schema.not_enforced(
                form.found.schema, form.any_order, form.is_open, form.found.places, form.in_json
            ):
                yield _below(form.place, place), what + which


@functools.lru_cache(maxsize=2)
def read(source: str, open_objects: bool) -> Tag:
    """A tag's text, its schemas rewritten as those of other guides are (`weft.grammar.schema.rewritten`). What is
    written as XML, or without some texts, depends on how a schema is put, and is left as it is. Raises `GuideError`
    for a schema that is none, or that nothing can satisfy.
    """
    tag = tag_of(source)
    forms = []
    for pattern in _patterns(tag):
        check_regex(pattern)
    for place, node, begin in _schemas(tag):
        schema = node["json_schema"]
        json_schema.check(schema)
        found, is_open = Rewritten(schema), open_objects
        is_plain = node.get("style", "json") == "json" and not node.get("excludes")
        if is_plain:
            found = rewrite(schema, open_objects)
            is_open = open_objects or not found.reason  # what is rewritten says itself where it is closed
            if found.schema is False:
                raise GuideError(f"structural tag at {where(place)}: nothing can satisfy the schema")
        if is_plain or open_objects:
            node["json_schema"] = xgrammar_schema.opened_schema(found.schema, is_open)
        node["json_schema"] = xgrammar_schema.without_barred(node["json_schema"], is_open)
        in_json = node.get("style", "json") == "json"
        node["json_schema"] = xgrammar_schema.spelled_schema(node["json_schema"], in_json)
        forms.append(
            _Form(
                Place(place, "json_schema"),
                begin,
                bool(node.get("any_order")),
                found,
                is_open,
                node.pop("strict", None) is True,
                in_json,
            )
        )
    return Tag(json.dumps(tag), tuple(forms))


def _patterns(tag: Any) -> Iterator[str]:
    """The regular expressions of a tag that stand for themselves, not in a schema."""
    pending = [tag]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict) and node.get("type") != "json_schema":
            if node.get("type") == "regex" and isinstance(node.get("pattern"), str):
                yield node["pattern"]
            pending += node.values()


def _schemas(tag: Any) -> Iterator[tuple[Place | None, dict[str, Any], str]]:
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


def _below(within: Place, place: Place | None) -> Place:
    """A place in a schema, as one of what the schema is in."""
    parts = []
    while place is not None:
        parts.append(place.part)
        place = place.parent
    for part in reversed(parts):
        within = Place(within, part)
    return within
