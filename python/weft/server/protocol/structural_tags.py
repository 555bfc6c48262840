"""Checks structural tags in requests, in XGrammar's form and in vLLM's older one. Unknown members are refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from weft.server.errors import ApiError, quoted
from weft.server.protocol.body import checked_text

FORMATS: dict[str, tuple[str, ...]] = {
    "any_text": ("excludes", "max_tokens", "max_chars"),
    "const_string": ("value",),
    "json_schema": ("json_schema", "style", "any_order", "max_whitespace_cnt", "excludes", "strict"),
    "grammar": ("grammar",),
    "regex": ("pattern",),
    "qwen_xml_parameter": ("json_schema",),
    "or": ("elements",),
    "sequence": ("elements",),
    "tag": ("begin", "content", "end"),
    "triggered_tags": ("triggers", "tags", "at_least_one", "stop_after_first", "excludes"),
    "token_triggered_tags": ("trigger_tokens", "tags", "exclude_tokens", "at_least_one", "stop_after_first"),
    "tags_with_separator": ("tags", "separator", "at_least_one", "stop_after_first"),
    "optional": ("content",),
    "plus": ("content",),
    "star": ("content",),
    "token": ("token",),
    "exclude_token": ("exclude_tokens",),
    "any_tokens": ("exclude_tokens", "max_tokens"),
    "repeat": ("min", "max", "content"),
    "dispatch": ("rules", "loop", "excludes"),
    "token_dispatch": ("rules", "loop", "exclude_tokens"),
}
"""The members of XGrammar's formats, by `type`. XGrammar ignores a misspelt member, so weft checks the names. `strict`
in a schema's format is weft's own. The table is not read from XGrammar's models, because importing them takes seconds.
A test compares the two."""
STRUCTURE = ("begin", "schema", "end")
TAG = ("type", "format", "structures", "triggers")


def tag_text(tag: Mapping[str, Any], place: str) -> str:
    """Return a structural tag as JSON in XGrammar's form. `place` is its path in the body. Raises `ApiError` for
    members that neither form has. Other errors are found when the guide is compiled."""
    kind = tag.get("type", "structural_tag")
    if kind != "structural_tag":
        raise _wrong(place, f"{place}.type is {quoted(kind)}; it must be 'structural_tag'")
    _check_members(tag, TAG, place, "a structural tag")
    older = [name for name in ("structures", "triggers") if tag.get(name) is not None]
    form = tag.get("format")
    if form is not None and older:
        raise _wrong(place, f"{place} has format and {older[0]}; a structural tag has one form")
    if form is None and len(older) < 2:
        raise _wrong(place, f"{place} must have format, or structures and triggers")
    if form is None:
        form = _of_older(tag["structures"], tag["triggers"], place)
    else:
        _check_format(form, f"{place}.format")
    return json.dumps({"type": "structural_tag", "format": form})


def _of_older(structures: Any, triggers: Any, place: str) -> dict[str, Any]:
    for name, value in (("structures", structures), ("triggers", triggers)):
        if not isinstance(value, list):
            raise _wrong(place, f"{place}.{name} must be a list")
    tags = [_tag_of(entry, f"{place}.structures.{i}") for i, entry in enumerate(structures)]
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


def _tag_of(structure: Any, place: str) -> dict[str, Any]:
    if not isinstance(structure, dict):
        raise _wrong(place, f"{place} must be an object of {', '.join(STRUCTURE)}")
    _check_members(structure, STRUCTURE, place, "a structure")
    for name in ("begin", "end"):
        if not isinstance(structure.get(name), str):
            raise _wrong(place, f"{place}.{name} must be a text")
    schema = structure.get("schema")
    if isinstance(schema, str):
        try:
            schema = json.loads(checked_text(schema))
        except (ValueError, RecursionError):
            raise _wrong(place, f"{place}.schema is no JSON that can be read") from None
    content = {"type": "json_schema", "json_schema": {} if schema is None else schema}
    return {"type": "tag", "begin": structure["begin"], "content": content, "end": structure["end"]}


def _check_format(form: Any, place: str) -> None:
    """Raise `ApiError` for an unknown member of a format or of any nested format."""
    pending: list[tuple[Any, str, str | None]] = [(form, place, None)]
    while pending:
        node, where, kind = pending.pop()
        if not isinstance(node, dict):
            continue
        kind = node.get("type", kind)
        known = FORMATS.get(kind) if isinstance(kind, str) else None
        if known is None:
            continue  # XGrammar's own error for an unknown type lists the known ones
        _check_members(node, ("type", *known), where, f"a format of the type {kind}")
        pending += _within(node, known, where)


def _within(
    node: dict[str, Any], known: tuple[str, ...], place: str
) -> Iterable[tuple[Any, str, str | None]]:
    """Yield the formats nested in a format. Each comes with its path, and with its type if the format may omit
    `type`."""
    for name in ("content", "begin", "end"):
        if name in known and name in node:
            yield node[name], f"{place}.{name}", None if name == "content" else "token"
    for name in ("elements", "tags", "rules"):
        entries = node.get(name) if name in known else None
        for i, entry in enumerate(entries if isinstance(entries, list) else ()):
            if name == "rules":  # a pair of a pattern and the format after it
                entry = entry[1] if isinstance(entry, list) and len(entry) == 2 else None
            yield entry, f"{place}.{name}.{i}", "tag" if name == "tags" else None


def _check_members(members: Mapping[str, Any], known: tuple[str, ...], place: str, kind: str) -> None:
    unknown = next((name for name in members if name not in known), None)
    if unknown is not None:
        raise _wrong(
            place,
            f"{place} has {quoted(unknown)}, which is not known; {kind} has {', '.join(known)}",
            code="unknown_parameter",
        )


def _wrong(place: str, message: str, code: str | None = None) -> ApiError:
    return ApiError(message, param=place.partition(".")[0], code=code)
