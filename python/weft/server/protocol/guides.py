"""Fields that say what an answer must look like: OpenAI's, vLLM's old and new ones, and weft's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from weft.server.protocol import other_names
from weft.server.protocol.body import MOST_COUNTED, Body, Few, Object

Schema = dict[str, Any] | bool | str


class JsonSchemaFormat(Body):
    """`response_format.json_schema`."""

    name: str | None = None
    description: str | None = None
    schema_: Schema = Field(alias="schema")
    strict: bool | None = None

    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.JSON_SCHEMA_FORMAT


class ResponseFormat(Body):
    """`response_format`: text, json_object, json_schema or structural_tag (of XGrammar's form, or vLLM's older one)."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    format: dict[str, Any] | None = None
    structures: Few[Object] | None = None
    triggers: Few[str] | None = None

    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.RESPONSE_FORMAT


class StructuredOutputs(Body):
    """vLLM's `structured_outputs`."""

    json_: Schema | None = Field(None, alias="json")
    regex: str | None = None
    choice: Few[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False

    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.STRUCTURED_OUTPUTS
    REFUSED: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = {
        "whitespace_pattern": ("blanks are bounded, or none with disable_any_whitespace", ()),
    }


class OwnGuide(Body):
    """weft's `guide`: one kind, with its options. `after` names a text or special token until which text is free."""

    json_object: bool | None = None
    json_schema: Schema | None = None
    regex: str | None = None
    ebnf: str | None = None
    lark: str | None = None
    choice: Few[str] | None = None
    structural_tag: str | dict[str, Any] | None = None
    wasm: str | None = Field(None, max_length=256)
    arg: Any = None
    handle: str | None = None
    strict: bool = True
    any_order: bool = False
    open_objects: bool = False
    max_whitespace: int | None = Field(8, ge=1, le=MOST_COUNTED)
    after: str | int | None = None
    max_free_tokens: int | None = Field(None, ge=0, le=MOST_COUNTED)

    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.GUIDE


class GuideFields(Body):
    """What every route that generates takes."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Few[str] | None = None
    guided_grammar: str | None = None
    guide: OwnGuide | None = None

    REFUSED: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = {
        "guided_decoding_backend": (
            "the server chooses the library that enforces more of a guide",
            ("auto",),
        ),
        "guided_whitespace_pattern": ("give guide.max_whitespace", ()),
    }
