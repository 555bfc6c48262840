"""The two forms of a structural tag's text: XGrammar's `format`, and the older one of structures and triggers.

The older one, which XGrammar had before and programs for TensorRT-LLM write, is free text in which a trigger begins one
of the structures that start with it: its begin, JSON of its schema, its end; then free text again. In today's form that
is `triggered_tags`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft import _core
from weft.errors import GuideError, brief

OLDER = ("structures", "triggers")
STRUCTURE = ("begin", "schema", "end")


def tag_of(source: str) -> Any:
    """What a tag's text says, in today's form. Raises `GuideError` for text that is no JSON, and for what is wrong with
    the older form; of the other nothing is looked at."""
    try:
        tag = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise GuideError(f"structural tag: it is no JSON that can be read: {error}") from None
    return of_older(tag) if _is_older(tag) else tag


def depth_of_texts(source: str) -> int:
    """How deep the schemas nest that a tag of the older form has as texts within its text; 0 without any."""
    tag = json.loads(source)
    structures = tag.get("structures") if _is_older(tag) else None
    listed = structures if isinstance(structures, list) else []
    texts = [one.get("schema") for one in listed if isinstance(one, dict)]
    return max((_core.json_depth(text) for text in texts if isinstance(text, str)), default=0)


def of_older(tag: Mapping[str, Any]) -> dict[str, Any]:
    """Today's form of a tag of the older one. Raises `GuideError` for what that one does not have, and names it."""
    if tag.get("format") is not None:
        raise GuideError("structural tag: it has format and structures; a structural tag has one form")
    _check_members(tag, ("type", "format", *OLDER), "it")
    if tag.get("type", "structural_tag") != "structural_tag":
        raise GuideError(f"structural tag: its type is {brief(repr(tag['type']))}, not 'structural_tag'")
    for name in OLDER:
        if not isinstance(tag.get(name), list) or not tag[name]:
            raise GuideError(f"structural tag: {name} must be a list with at least one entry")
    bad = next((one for one in tag["triggers"] if not isinstance(one, str) or not one), None)
    if bad is not None:
        raise GuideError(f"structural tag: triggers has {brief(repr(bad))}; each must be a text, not empty")
    tags = [_tag(one, f"structures/{i}") for i, one in enumerate(tag["structures"])]
    triggers = list(dict.fromkeys(tag["triggers"]))
    _check_triggers([one["begin"] for one in tags], triggers)
    return {
        "type": "structural_tag",
        "format": {"type": "triggered_tags", "triggers": triggers, "tags": tags},
    }


def _is_older(tag: Any) -> bool:
    return isinstance(tag, dict) and any(tag.get(name) is not None for name in OLDER)


def _tag(structure: Any, place: str) -> dict[str, Any]:
    if not isinstance(structure, dict):
        raise GuideError(f"structural tag: at {place}: it must be an object of {', '.join(STRUCTURE)}")
    _check_members(structure, STRUCTURE, f"{place}")
    for name in ("begin", "end"):
        if not isinstance(structure.get(name), str):
            raise GuideError(f"structural tag: at {place}: {name} must be a text")
    schema = structure.get("schema")
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise GuideError(
                f"structural tag: at {place}: schema is no JSON that can be read: {error}"
            ) from None
    if not isinstance(schema, dict | bool):
        raise GuideError(f"structural tag: at {place}: schema must be a JSON schema, or its text")
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": structure["begin"], "content": content, "end": structure["end"]}


def _check_triggers(begins: Sequence[str], triggers: Sequence[str]) -> None:
    """Raise `GuideError` unless each begin has one trigger as its prefix, and each trigger such a begin."""
    known, used = set(triggers), set()
    lengths = sorted({len(trigger) for trigger in triggers})
    for i, begin in enumerate(begins):
        found = [begin[:n] for n in lengths if n <= len(begin) and begin[:n] in known]
        if len(found) != 1:
            which = _listed(found or triggers)
            what = "two triggers" if found else "none of the triggers"
            raise GuideError(
                f"structural tag: at structures/{i}: the begin {brief(repr(begin))} has {what} as its prefix: {which}; "
                "it must have one"
            )
        used.add(found[0])
    idle = next((trigger for trigger in triggers if trigger not in used), None)
    if idle is not None:
        raise GuideError(
            f"structural tag: no structure begins with the trigger {brief(repr(idle))}; leave it out"
        )


def _check_members(given: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise GuideError(
            f"structural tag: {what} has {brief(repr(unknown))}, which is not known; it has {', '.join(known)}"
        )


def _listed(texts: Iterable[str]) -> str:
    return brief(", ".join(map(repr, texts)))
