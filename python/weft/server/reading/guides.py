"""The one guide of a request, whichever field says it: OpenAI's, vLLM's or weft's own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.errors import GuideError
from weft.grammar.guide import MAX_WHITESPACE, Guide
from weft.server.errors import ApiError, api_error, quoted
from weft.server.protocol.guides import GuideFields, OwnGuide, ResponseFormat, StructuredOutputs
from weft.server.protocol.json_data import checked_text
from weft.server.protocol.structural_tags import TAG, tag_text

KINDS = (
    "json", "json_schema", "json_object", "regex", "choice", "ebnf", "lark", "grammar", "structural_tag", "wasm",
    "handle",
)  # fmt: skip
"""Members of `structured_outputs` and `guide` that say what an answer looks like."""
SCHEMAS = ("json_schema", "json_object")
OPTIONS = {
    "strict": (*SCHEMAS, "structural_tag"),
    "open_objects": (*SCHEMAS, "structural_tag"),
    "any_order": SCHEMAS,
    "max_whitespace": SCHEMAS,
}
"""Options of `guide`, and the kinds that each of them changes."""
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


FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guide",
)
"""All that may say a guide."""


def guide_field(fields: GuideFields) -> str | None:
    """The field that says the guide of a request that has one guide: where none of these does, tools do."""
    given = _given(fields)
    if given:
        return given[0]
    return "tools" if getattr(fields, "tools", None) else None


def guide_of(fields: GuideFields, sources: GuideSources) -> Guide | None:
    """The guide of a request, or None. Raises `ApiError` that names the field, also for two of them."""
    makers: dict[str, Callable[[], Guide | None]] = {
        "response_format": lambda: _of_format(fields.response_format),
        "structured_outputs": lambda: _of_structured(fields.structured_outputs),
        "guided_json": lambda: _schema(fields.guided_json),
        "guided_regex": lambda: Guide.regex(fields.guided_regex or ""),
        "guided_choice": lambda: Guide.choice(fields.guided_choice or []),
        "guided_grammar": lambda: _grammar(fields.guided_grammar or ""),
        "guide": lambda: _own(fields.guide, sources),
    }
    given = _given(fields)
    if len(given) > 1:
        raise ApiError(f"{' and '.join(given)} were given; an answer has one guide", param=given[1])
    if fields.response_format is not None and "response_format" not in given:
        _of_format(fields.response_format)  # what it has beside its type is wrong
    if not given:
        return None
    try:
        return makers[given[0]]()
    except GuideError as error:
        raise api_error(error, guide=given[0]) from error
    except ApiError as error:
        error.param = error.param or given[0]
        raise


def _given(fields: GuideFields) -> list[str]:
    """The fields that say a guide. A format that is text asks for nothing."""
    given = [name for name in FIELDS if getattr(fields, name) is not None]
    if fields.response_format is not None and fields.response_format.type == "text":
        given.remove("response_format")
    return given


def _schema(schema: Any, **options: Any) -> Guide:
    """A JSON schema that a thread which compiles reads."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    if options.keys() <= {"strict", "open_objects"}:
        return Guide.unread("json_schema", text, **options)
    return Guide.json_schema(checked_text(text), **options)


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
        given = {name: value for name in TAG if (value := getattr(form, name)) is not None}
        return _structural_tag(given, "response_format")
    if form.type == "text":
        return None
    if form.json_schema is None:
        raise ApiError("response_format.json_schema is missing", param="response_format")
    # As OpenAI has it: without `strict` as much as possible is enforced, and the answer says what was not.
    return _schema(form.json_schema.schema_, strict=bool(form.json_schema.strict))


def _of_structured(given: StructuredOutputs | None) -> Guide | None:
    assert given is not None
    separators = {}
    if given.disable_any_whitespace:
        separators["separators"] = COMPACT
        _check_beside(given, "structured_outputs.disable_any_whitespace", ("json", "json_object"))
    makers: dict[str, Callable[[], Guide]] = {
        "json": lambda: _schema(given.json_, **separators),
        "regex": lambda: Guide.regex(given.regex or ""),
        "choice": lambda: Guide.choice(given.choice or []),
        "grammar": lambda: _grammar(given.grammar or ""),
        "json_object": lambda: _schema(ANY_OBJECT, **separators),
        "structural_tag": lambda: _structural_tag(given.structural_tag, "structured_outputs.structural_tag"),
    }
    return _one(given, makers, "structured_outputs")


def _own(given: OwnGuide | None, sources: GuideSources) -> Guide | None:
    assert given is not None
    for name, kinds in OPTIONS.items():
        if getattr(given, name) != OwnGuide.model_fields[name].default:
            _check_beside(given, f"guide.{name}", kinds)
    schema_options: dict[str, Any] = {"strict": given.strict}
    if given.open_objects:
        schema_options["open_objects"] = True
    if given.any_order or given.max_whitespace != MAX_WHITESPACE:
        schema_options |= {"any_order": given.any_order, "max_whitespace": given.max_whitespace}
    makers: dict[str, Callable[[], Guide]] = {
        "json_object": lambda: _schema(ANY_OBJECT, **schema_options),
        "json_schema": lambda: _schema(given.json_schema, **schema_options),
        "regex": lambda: Guide.regex(given.regex or ""),
        "ebnf": lambda: Guide.ebnf(given.ebnf or ""),
        "lark": lambda: Guide.lark(given.lark or ""),
        "choice": lambda: Guide.choice(given.choice or []),
        "structural_tag": lambda: _structural_tag(
            given.structural_tag,
            "guide.structural_tag",
            strict=given.strict,
            open_objects=given.open_objects,
        ),
        "wasm": lambda: sources.program(given.wasm or "", _argument(given.arg)),
        "handle": lambda: _handle(given.handle or "", sources.handles),
    }
    guide = _one(given, makers, "guide")
    if given.max_free_tokens is not None and given.after is None:
        raise ApiError(
            "guide.max_free_tokens is of the text before a guide; give guide.after, too", param="guide"
        )
    if given.arg is not None and given.wasm is None:
        raise ApiError("guide.arg is the argument of a program; give guide.wasm, too", param="guide")
    if guide is None or given.after is None:
        if given.after is not None:
            raise ApiError("guide.after needs what follows, such as guide.json_schema", param="guide")
        return guide
    return Guide.after(given.after, guide, max_free_tokens=given.max_free_tokens)


def _one(given: Any, makers: Mapping[str, Callable[[], Guide]], field: str) -> Guide | None:
    """What the one member that is there makes."""
    there = _kinds(given)
    if len(there) > 1:
        raise ApiError(f"{field} has {' and '.join(there)}; it must have one of them", param=field)
    if not there:
        raise ApiError(f"{field} says nothing; give one of {', '.join(makers)}", param=field)
    return makers[there[0]]()


def _kinds(given: OwnGuide | StructuredOutputs) -> list[str]:
    """The members that say a guide. False is a schema that takes nothing, and else says no."""
    values = {name: getattr(given, "json_" if name == "json" else name, None) for name in KINDS}
    schemas = ("json", "json_schema")
    return [
        name
        for name, value in values.items()
        if value is not None and (value is not False or name in schemas)
    ]


def _check_beside(given: Any, option: str, kinds: tuple[str, ...]) -> None:
    """Raise `ApiError` where an option that is for these kinds stands beside another one, which it does not change."""
    beside = next((name for name in _kinds(given) if name not in kinds), None)
    if beside is not None:
        raise ApiError(
            f"{option} is for {' and '.join(kinds)}; leave it out beside {beside}",
            param=option.partition(".")[0],
        )


def _structural_tag(tag: str | dict[str, Any] | None, place: str, **options: bool) -> Guide:
    given: Any = tag
    if isinstance(tag, str):
        try:
            given = json.loads(checked_text(tag))
        except (ValueError, RecursionError):
            given = None
    if not isinstance(given, dict):
        return Guide.unread(
            "structural_tag", str(tag), **options
        )  # what is wrong is told when it is compiled
    return Guide.unread("structural_tag", tag_text(given, place), **options)


def _argument(given: Any) -> str:
    if given is None:
        return ""
    return given if isinstance(given, str) else json.dumps(given)


def _handle(name: str, handles: Mapping[str, Guide]) -> Guide:
    if name not in handles:
        known = ", ".join(sorted(handles)) or "none"
        raise ApiError(f"there is no guide {quoted(name)}; the server has {known}", 404, param="guide")
    return handles[name]
