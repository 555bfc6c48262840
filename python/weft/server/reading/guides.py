"""Builds the guide of a request. Seven fields can set it: one of OpenAI's, five of vLLM's, and weft's `guide`.

`guide_of` has one case per field. A field with several kinds of guide has its own function, with one case per kind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from weft.errors import GuideError
from weft.grammar.guide import TIDY, Guide
from weft.server.errors import ApiError, api_error, quoted
from weft.server.protocol.body import checked_text
from weft.server.protocol.generation import GuideFields, OwnGuide, ResponseFormat, StructuredOutputs
from weft.server.protocol.structural_tags import TAG, tag_text

GUIDE_FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guide",
)
"""The fields that set a guide, besides `tools`."""
KINDS = (
    "json", "json_schema", "json_object", "regex", "choice", "ebnf", "lark", "grammar", "structural_tag", "wasm",
    "handle",
)  # fmt: skip
"""The members of `structured_outputs` and `guide` that define a guide. The other members are options."""
STRUCTURED_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
GUIDE_KINDS = (
    "json_object", "json_schema", "regex", "ebnf", "lark", "choice", "structural_tag", "wasm", "handle",
)  # fmt: skip
FORMAT_MEMBERS = {
    "json_schema": ("json_schema",),
    "structural_tag": ("format", "structures", "triggers"),
    "text": (),
    "json_object": (),
}
"""The types of `response_format`, and the members that each allows."""
OPTIONS = {
    "strict": ("json_schema", "json_object", "structural_tag"),
    "open_objects": ("json_schema", "json_object", "structural_tag"),
    "any_order": ("json_schema", "json_object"),
    "max_whitespace": ("json_schema", "json_object"),
}
"""The options of `guide`, and the kinds that each applies to."""
ANY_OBJECT = '{"type": "object"}'
COMPACT = (", ", ": ")
EBNF_RULE = re.compile(r"^[ \t]*<?[A-Za-z_][\w.-]*>?\s*::=", re.MULTILINE)

Program = Callable[[str, str], Guide]
"""Returns the guide that runs a program, given the program's name and its argument."""


def guide_field(body: GuideFields) -> str | None:
    """Return the name of the field that sets the guide, for error messages. A valid body has at most one. It is
    `tools` if there are tools and no other field."""
    present = _present(body)
    if present:
        return present[0]
    return "tools" if getattr(body, "tools", None) else None


def guide_of(body: GuideFields, handles: Mapping[str, Guide], program: Program) -> Guide | None:
    """Build the guide that the body's fields set; None if there is none. `tools` is not read here.

    `handles` holds the configured guides by name. Raises `ApiError`, which names the field, for an invalid guide or if
    two fields set one.
    """
    present = _present(body)
    if len(present) > 1:
        raise ApiError(f"{' and '.join(present)} were given; an answer has one guide", param=present[1])
    if body.response_format is not None:
        _check_format(body.response_format)
    if not present:
        return None
    field = present[0]
    value = getattr(body, field)
    try:
        match field:
            case "response_format":
                return _of_response_format(value)
            case "structured_outputs":
                return _of_structured_outputs(value)
            case "guided_json":
                return _schema(value)
            case "guided_regex":
                return Guide.regex(value)
            case "guided_choice":
                return Guide.choice(value)
            case "guided_grammar":
                return _grammar(value)
            case _:
                return _of_guide(value, handles, program)
    except GuideError as error:
        raise api_error(error, guide=field) from error
    except ApiError as error:
        error.param = error.param or field
        raise


def _present(body: GuideFields) -> list[str]:
    """Return the fields that set a guide. A `response_format` of type text does not."""
    present = [name for name in GUIDE_FIELDS if getattr(body, name) is not None]
    if body.response_format is not None and body.response_format.type == "text":
        present.remove("response_format")
    return present


# -- response_format


def _check_format(form: ResponseFormat) -> None:
    if form.type not in FORMAT_MEMBERS:
        raise ApiError(
            f"response_format.type is {quoted(form.type)}; it must be one of {', '.join(FORMAT_MEMBERS)}",
            param="response_format",
        )
    for name in ("json_schema", "format", "structures", "triggers"):
        if getattr(form, name) is not None and name not in FORMAT_MEMBERS[form.type]:
            raise ApiError(f"response_format.{name} is not for the type {form.type}", param="response_format")


def _of_response_format(form: ResponseFormat) -> Guide | None:
    match form.type:
        case "json_object":
            return _schema(ANY_OBJECT)
        case "structural_tag":
            tag = {name: value for name in TAG if (value := getattr(form, name)) is not None}
            return _structural_tag(tag, "response_format")
        case _:
            if form.json_schema is None:
                raise ApiError("response_format.json_schema is missing", param="response_format")
            # As in OpenAI's API, without `strict` the schema is enforced as far as possible. The answer then lists the
            # parts that are not enforced.
            return _schema(form.json_schema.schema_, strict=bool(form.json_schema.strict))


# -- structured_outputs and guide


def _of_structured_outputs(outputs: StructuredOutputs) -> Guide:
    separators = {}
    if outputs.disable_any_whitespace:
        separators["separators"] = COMPACT
        _check_option(outputs, "structured_outputs.disable_any_whitespace", ("json", "json_object"))
    kind, value = _only_kind(outputs, STRUCTURED_KINDS, "structured_outputs")
    match kind:
        case "json":
            return _schema(value, **separators)
        case "regex":
            return Guide.regex(value)
        case "choice":
            return Guide.choice(value)
        case "grammar":
            return _grammar(value)
        case "json_object":
            return _schema(ANY_OBJECT, **separators)
        case _:
            return _structural_tag(value, "structured_outputs.structural_tag")


def _of_guide(given: OwnGuide, handles: Mapping[str, Guide], program: Program) -> Guide:
    for name, kinds in OPTIONS.items():
        if getattr(given, name) != OwnGuide.model_fields[name].default:
            _check_option(given, f"guide.{name}", kinds)
    guide = _kind_of_guide(given, handles, program)
    if given.max_free_tokens is not None and given.after is None:
        raise ApiError(
            "guide.max_free_tokens is of the text before a guide; give guide.after, too", param="guide"
        )
    if given.arg is not None and given.wasm is None:
        raise ApiError("guide.arg is the argument of a program; give guide.wasm, too", param="guide")
    if given.after is None:
        return guide
    return Guide.after(given.after, guide, max_free_tokens=given.max_free_tokens)


def _kind_of_guide(given: OwnGuide, handles: Mapping[str, Guide], program: Program) -> Guide:
    schema_options: dict[str, Any] = {"strict": given.strict}
    # Leave out options with default values: given `any_order` or `max_whitespace`, `_schema` can't defer parsing.
    if given.open_objects:
        schema_options["open_objects"] = True
    if given.any_order or given.max_whitespace != TIDY:
        schema_options |= {"any_order": given.any_order, "max_whitespace": given.max_whitespace}
    kind, value = _only_kind(given, GUIDE_KINDS, "guide")
    match kind:
        case "json_object":
            return _schema(ANY_OBJECT, **schema_options)
        case "json_schema":
            return _schema(value, **schema_options)
        case "regex":
            return Guide.regex(value)
        case "ebnf":
            return Guide.ebnf(value)
        case "lark":
            return Guide.lark(value)
        case "choice":
            return Guide.choice(value)
        case "structural_tag":
            options = {"strict": given.strict, "open_objects": given.open_objects}
            return _structural_tag(value, "guide.structural_tag", **options)
        case "wasm":
            return program(value, _argument(given.arg))
        case _:
            return _handle(value, handles)


def _only_kind(given: OwnGuide | StructuredOutputs, kinds: tuple[str, ...], field: str) -> tuple[str, Any]:
    """Return the single kind that `given` sets, and its value. Raises `ApiError` for none or several."""
    present = _kinds(given)
    if len(present) > 1:
        raise ApiError(f"{field} has {' and '.join(present)}; it must have one of them", param=field)
    if not present:
        raise ApiError(f"{field} says nothing; give one of {', '.join(kinds)}", param=field)
    return next(iter(present.items()))


def _kinds(given: OwnGuide | StructuredOutputs) -> dict[str, Any]:
    """Return the kinds that `given` sets, with their values."""
    values = {name: getattr(given, "json_" if name == "json" else name, None) for name in KINDS}
    # For a schema, False is a valid value: no JSON satisfies it. But `json_object: false` means that it is not set.
    return {
        name: value
        for name, value in values.items()
        if value is not None and (value is not False or name in ("json", "json_schema"))
    }


def _check_option(given: OwnGuide | StructuredOutputs, option: str, kinds: tuple[str, ...]) -> None:
    """Raise `ApiError` if `given` sets a kind of guide for which the option has no meaning."""
    other = next((name for name in _kinds(given) if name not in kinds), None)
    if other is not None:
        raise ApiError(
            f"{option} is for {' and '.join(kinds)}; leave it out beside {other}",
            param=option.partition(".")[0],
        )


# -- guides by kind


def _schema(schema: Any, **options: Any) -> Guide:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    # Parsing a schema may take long, so the compiler's thread does it if possible. The other options rewrite the
    # schema, so it must be parsed here.
    if options.keys() <= {"strict", "open_objects"}:
        return Guide.unread("json_schema", text, **options)
    return Guide.json_schema(checked_text(text), **options)


def _grammar(text: str) -> Guide:
    """Build the guide for vLLM's `grammar`. It is EBNF if a line begins with a rule's name and `::=`, else Lark."""
    return Guide.ebnf(text) if EBNF_RULE.search(text) else Guide.lark(text)


def _structural_tag(tag: str | dict[str, Any], place: str, **options: bool) -> Guide:
    parsed: Any = tag
    if isinstance(tag, str):
        try:
            parsed = json.loads(checked_text(tag))
        except (ValueError, RecursionError):
            parsed = None
    if not isinstance(parsed, dict):
        return Guide.unread("structural_tag", str(tag), **options)  # compiling reports the fault
    return Guide.unread("structural_tag", tag_text(parsed, place), **options)


def _argument(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _handle(name: str, handles: Mapping[str, Guide]) -> Guide:
    if name not in handles:
        known = ", ".join(sorted(handles)) or "none"
        raise ApiError(f"there is no guide {quoted(name)}; the server has {known}", 404, param="guide")
    return handles[name]
