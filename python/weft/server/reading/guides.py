"""The one guide of a request, whichever field says it: OpenAI's, vLLM's or weft's own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.grammar.guide import Guide
from weft.server.errors import ApiError, quoted
from weft.server.protocol.guides import GuideFields, OwnGuide, ResponseFormat, StructuredOutputs

ANY_OBJECT = '{"type": "object"}'
COMPACT = (", ", ": ")
EBNF_RULE = re.compile(r"^[ \t]*<?[A-Za-z_][\w.-]*>?\s*::=", re.MULTILINE)

Programs = Callable[[str, str], Guide]
"""The guide of an uploaded program, by its name and its argument."""


@dataclass(frozen=True)
class GuideSources:
    """What requests name: guides of the server's own (`handles`), and programs of the tenant."""

    handles: Mapping[str, Guide]
    program: Programs


def guide_of(fields: GuideFields, sources: GuideSources) -> Guide | None:
    """The guide of a request, or None. Raises `ApiError` for two of them, and `GuideError`."""
    makers: dict[str, Callable[[], Guide | None]] = {
        "response_format": lambda: _of_format(fields.response_format),
        "structured_outputs": lambda: _of_structured(fields.structured_outputs),
        "guided_json": lambda: _schema(fields.guided_json),
        "guided_regex": lambda: Guide.regex(fields.guided_regex or ""),
        "guided_choice": lambda: Guide.choice(fields.guided_choice or []),
        "guided_grammar": lambda: _grammar(fields.guided_grammar or ""),
        "guide": lambda: _own(fields.guide, sources),
    }
    given = [name for name in makers if getattr(fields, name) is not None]
    if len(given) > 1 and fields.response_format is not None and fields.response_format.type == "text":
        given.remove("response_format")  # it asks for nothing
    if len(given) > 1:
        raise ApiError(f"{' and '.join(given)} were given; an answer has one guide", param=given[1])
    return makers[given[0]]() if given else None


def _schema(schema: Any, **options: Any) -> Guide:
    """A JSON schema that a thread which compiles reads."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    if options.keys() <= {"strict", "open_objects"}:
        return Guide.unread("json_schema", text, **options)
    return Guide.json_schema(text, **options)


def _grammar(text: str) -> Guide:
    """vLLM's `grammar`: EBNF, a rule of which begins a line with its name and ::=, or Lark."""
    return Guide.ebnf(text) if EBNF_RULE.search(text) else Guide.lark(text)


def _of_format(form: ResponseFormat | None) -> Guide | None:
    assert form is not None
    needs = {"json_schema": "json_schema", "structural_tag": None, "text": None, "json_object": None}
    if form.type not in needs:
        raise ApiError(
            f"response_format.type is {quoted(form.type)}; it must be one of {', '.join(needs)}",
            param="response_format",
        )
    for name in ("json_schema", "format", "structures", "triggers"):
        belongs = name == "json_schema" if form.type == "json_schema" else form.type == "structural_tag"
        if getattr(form, name) is not None and not (
            belongs and (name == "json_schema") == (form.type == "json_schema")
        ):
            raise ApiError(f"response_format.{name} is not for the type {form.type}", param="response_format")
    if form.type == "json_object":
        return _schema(ANY_OBJECT)
    if form.type == "structural_tag":
        return _tag(form)
    if form.type == "text":
        return None
    if form.json_schema is None:
        raise ApiError("response_format.json_schema is missing", param="response_format")
    # As OpenAI has it: without `strict` as much as possible is enforced, and the answer says what was not.
    return _schema(form.json_schema.schema_, strict=bool(form.json_schema.strict))


def _tag(form: ResponseFormat) -> Guide:
    if form.format is not None:
        return Guide.unread("structural_tag", json.dumps({"type": "structural_tag", "format": form.format}))
    if form.structures is None or form.triggers is None:
        raise ApiError("a structural tag has format, or structures and triggers", param="response_format")
    tags = [
        {
            "type": "tag",
            "begin": one.get("begin", ""),
            "content": {"type": "json_schema", "json_schema": one.get("schema", {})},
            "end": one.get("end", ""),
        }
        for one in form.structures
    ]
    triggered = {"type": "triggered_tags", "triggers": form.triggers, "tags": tags}
    return Guide.unread("structural_tag", json.dumps({"type": "structural_tag", "format": triggered}))


def _of_structured(given: StructuredOutputs | None) -> Guide | None:
    assert given is not None
    separators = {"separators": COMPACT} if given.disable_any_whitespace else {}
    makers: dict[str, Callable[[], Guide]] = {
        "json_": lambda: _schema(given.json_, **separators),
        "regex": lambda: Guide.regex(given.regex or ""),
        "choice": lambda: Guide.choice(given.choice or []),
        "grammar": lambda: _grammar(given.grammar or ""),
        "json_object": lambda: _schema(ANY_OBJECT, **separators),
        "structural_tag": lambda: _structural_tag(given.structural_tag),
    }
    return _one(given, makers, "structured_outputs")


def _own(given: OwnGuide | None, sources: GuideSources) -> Guide | None:
    assert given is not None
    schema_options: dict[str, Any] = {"strict": given.strict}
    if given.open_objects:
        schema_options["open_objects"] = True
    if given.any_order or given.max_whitespace != 8:
        schema_options |= {"any_order": given.any_order, "max_whitespace": given.max_whitespace}
    makers: dict[str, Callable[[], Guide]] = {
        "json_object": lambda: _schema(ANY_OBJECT, **schema_options),
        "json_schema": lambda: _schema(given.json_schema, **schema_options),
        "regex": lambda: Guide.regex(given.regex or ""),
        "ebnf": lambda: Guide.ebnf(given.ebnf or ""),
        "lark": lambda: Guide.lark(given.lark or ""),
        "choice": lambda: Guide.choice(given.choice or []),
        "structural_tag": lambda: _structural_tag(given.structural_tag),
        "wasm": lambda: sources.program(given.wasm or "", _argument(given.arg)),
        "handle": lambda: _handle(given.handle or "", sources.handles),
    }
    guide = _one(given, makers, "guide")
    if given.arg is not None and given.wasm is None:
        raise ApiError("guide.arg is the argument of a program; give guide.wasm, too", param="guide")
    if guide is None or given.after is None:
        if given.after is not None:
            raise ApiError("guide.after needs what follows, such as guide.json_schema", param="guide")
        return guide
    return Guide.after(given.after, guide, max_free_tokens=given.max_free_tokens)


def _one(given: Any, makers: Mapping[str, Callable[[], Guide]], field: str) -> Guide | None:
    """What the one member that is there makes."""
    there = [name for name in makers if getattr(given, name) not in (None, False)]
    if getattr(given, "json_schema", None) is False or getattr(given, "json_", None) is False:
        there = ["json_schema" if field == "guide" else "json_"]  # the schema that takes nothing
    if len(there) > 1:
        names = " and ".join(name.rstrip("_") for name in there)
        raise ApiError(f"{field} has {names}; it must have one of them", param=field)
    if not there:
        raise ApiError(
            f"{field} says nothing; give one of {', '.join(n.rstrip('_') for n in makers)}", param=field
        )
    return makers[there[0]]()


def _structural_tag(tag: str | dict[str, Any] | None) -> Guide:
    if isinstance(tag, dict) and tag.get("type") == "structural_tag" and "structures" in tag:
        return _tag(ResponseFormat.read(tag))
    return Guide.unread("structural_tag", tag if isinstance(tag, str) else json.dumps(tag))


def _argument(given: Any) -> str:
    if given is None:
        return ""
    return given if isinstance(given, str) else json.dumps(given)


def _handle(name: str, handles: Mapping[str, Guide]) -> Guide:
    if name not in handles:
        known = ", ".join(sorted(handles)) or "none"
        raise ApiError(f"there is no guide {quoted(name)}; the server has {known}", 404, param="guide")
    return handles[name]
