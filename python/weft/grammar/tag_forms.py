"""The two forms of a structural tag: XGrammar's current one (`format`), and the legacy one (`structures`, `triggers`).

Earlier versions of XGrammar had the legacy form, and TensorRT-LLM programs still use it. It allows free text. After a
trigger, one of the structures that begin with it must follow: its begin, JSON of its schema, its end. Then the text is
free again. The current form calls this `triggered_tags`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from weft import _core
from weft.errors import GuideError, brief

OLDER = ("structures", "triggers")
STRUCTURE = ("begin", "schema", "end")


def tag_of(source: str) -> Any:
    """Parse a tag's text, and convert the legacy form to the current one. Raises `GuideError` for invalid JSON and for
    errors in the legacy form. The current form is not checked."""
    try:
        tag = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise GuideError(f"structural tag: it is not valid JSON: {error}") from None
    return of_older(tag) if _is_older(tag) else tag


def ended_by(source: str, names: Collection[str]) -> str:
    """A tag without the texts `names` at the ends of its parts, where "" stands for each. They are the names of end
    tokens, which end the answer and are not part of its text."""
    return json.dumps(_ended(tag_of(source), names)) if any(name in source for name in names) else source


def _ended(form: Any, names: Collection[str]) -> Any:
    if isinstance(form, list):
        return [_ended(item, names) for item in form]
    if not isinstance(form, dict):
        return form
    result = {key: value if key == "json_schema" else _ended(value, names) for key, value in form.items()}
    end = form.get("end")
    if form.get("type") == "tag" and isinstance(end, list):
        result["end"] = list(dict.fromkeys("" if each in names else each for each in end))
    elif form.get("type") == "tag" and end in names:
        result["end"] = ""
    return result


def depth_of_texts(source: str) -> int:
    """The largest nesting depth of the schemas that a legacy tag holds as JSON strings; 0 without any. The depth of the
    tag's own text does not count them. `source` must be valid JSON."""
    tag = json.loads(source)
    structures = tag.get("structures") if _is_older(tag) else None
    entries = structures if isinstance(structures, list) else []
    texts = [entry.get("schema") for entry in entries if isinstance(entry, dict)]
    return max((_core.json_depth(text) for text in texts if isinstance(text, str)), default=0)


def of_older(tag: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a legacy tag to the current form. Raises a `GuideError` that names any unknown member."""
    if tag.get("format") is not None:
        raise GuideError("structural tag: it has format and structures; a structural tag has one form")
    _check_members(tag, ("type", "format", *OLDER), "it")
    if tag.get("type", "structural_tag") != "structural_tag":
        raise GuideError(f"structural tag: its type is {brief(repr(tag['type']))}, not 'structural_tag'")
    for name in OLDER:
        if not isinstance(tag.get(name), list) or not tag[name]:
            raise GuideError(f"structural tag: {name} must be a list with at least one entry")
    bad = next((trigger for trigger in tag["triggers"] if not isinstance(trigger, str) or not trigger), None)
    if bad is not None:
        raise GuideError(f"structural tag: triggers has {brief(repr(bad))}; each must be a text, not empty")
    tags = [_tag(structure, f"structures/{i}") for i, structure in enumerate(tag["structures"])]
    triggers = list(dict.fromkeys(tag["triggers"]))
    _check_triggers([converted["begin"] for converted in tags], triggers)
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
            raise GuideError(f"structural tag: at {place}: schema is not valid JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise GuideError(f"structural tag: at {place}: schema must be a JSON schema, or its text")
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": structure["begin"], "content": content, "end": structure["end"]}


def _check_triggers(begins: Sequence[str], triggers: Sequence[str]) -> None:
    """Raise `GuideError` unless each begin has exactly one trigger as its prefix, and each trigger is the prefix of a
    begin."""
    known, used = set(triggers), set()
    lengths = sorted({len(trigger) for trigger in triggers})
    for i, begin in enumerate(begins):
        prefixes = [begin[:n] for n in lengths if n <= len(begin) and begin[:n] in known]
        if len(prefixes) != 1:
            number = "two triggers" if prefixes else "none of the triggers"
            raise GuideError(
                f"structural tag: at structures/{i}: the begin {brief(repr(begin))} has {number} as its prefix: "
                f"{_listed(prefixes or triggers)}; it must have one"
            )
        used.add(prefixes[0])
    unused = next((trigger for trigger in triggers if trigger not in used), None)
    if unused is not None:
        raise GuideError(
            f"structural tag: no structure begins with the trigger {brief(repr(unused))}; leave it out"
        )


def _check_members(members: Mapping[str, Any], known: Sequence[str], owner: str) -> None:
    unknown = next((name for name in members if name not in known), None)
    if unknown is not None:
        raise GuideError(
            f"structural tag: {owner} has {brief(repr(unknown))}, which is not known; it has {', '.join(known)}"
        )


def _listed(texts: Iterable[str]) -> str:
    return brief(", ".join(map(repr, texts)))
