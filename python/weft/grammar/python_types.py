"""Python types as guides: the JSON schema of a type, and the object that an answer describes, both through pydantic.

pydantic's JSON schemas document a type; here they must enforce it. `_AnswerSchema` changes them where a grammar library
enforces no such keyword (`uniqueItems`), and where a text of the schema is no value of the type (a key "abc" of
`dict[int, str]`). Two kinds of rules stay outside a guide, and are checked when an answer is parsed: validators in
Python, and constraints for which JSON Schema has no keyword, such as `Field(ge=date(2024, 1, 1))`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from zoneinfo import available_timezones

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import (
    PydanticInvalidForJsonSchema,
    PydanticSchemaGenerationError,
    PydanticUndefinedAnnotation,
)
from pydantic.json_schema import GenerateJsonSchema, JsonRef, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema

from weft.errors import AnswerError, GuideError
from weft.grammar.schema import formats

DOUBLE_DIGITS = 15
"""The number of decimal digits that a JSON number keeps, since pydantic reads it as a double."""
_DOUBLES = {"minimum": 1 - 10**DOUBLE_DIGITS, "maximum": 10**DOUBLE_DIGITS - 1}
MAX_FAULTS = 3
"""The number of faults of an answer that an error lists."""
MAX_KEYS = 256
"""The number of keys of a dict that a schema lists, for keys that no pattern describes."""
MAX_URL = 2083
"""pydantic's limit of the length of a URL."""

_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_IPV4, _IPV6 = (formats.PATTERNS[name][1:-1] for name in ("ipv4", "ipv6"))
_SUBNET = rf"{formats.OCTET}\.0\.0\.0/8|(?:{formats.OCTET}\.){{2}}0\.0/16|(?:{formats.OCTET}\.){{3}}0/24"
_HEX = "[0-9A-Fa-f]"
_HOURS = r"T(?:[0-9]{1,4}H(?:[0-9]{1,4}M)?(?:[0-9]{1,4}(?:\.[0-9]{1,6})?S)?"
_HOURS += r"|[0-9]{1,4}M(?:[0-9]{1,4}(?:\.[0-9]{1,6})?S)?|[0-9]{1,6}(?:\.[0-9]{1,6})?S)"
_DAYS = "(?:[0-9]{1,4}Y(?:[0-9]{1,4}M)?(?:[0-9]{1,4}D)?|[0-9]{1,4}M(?:[0-9]{1,4}D)?|[0-9]{1,5}D)"
_WORD = "[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*"  # no "--": "xn--" begins an encoded name, which must be a valid one
_NAME = rf"(?:{_WORD}\.)*[A-Za-z](?:-?[A-Za-z0-9])*"  # a last part of digits would make it an IPv4 address
_LABEL = "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,30}"
_EMAIL = rf"[A-Za-z0-9_](?:[.+-]?[A-Za-z0-9_]){{0,30}}@(?:{_LABEL}\.){{1,3}}[A-Za-z]{{2,20}}"
_PORT = "(?::(?:[1-5][0-9]{4}|[1-9][0-9]{0,3}))?"
_PATH = r"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*"
_AFTER_PATH = r"(?:\?(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?"
_AFTER_PATH += r"(?:#(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?"
_USER = r"(?:[A-Za-z0-9._~-]+(?::[A-Za-z0-9._~-]*)?@)?"
_NUMBER = r"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?"
_FRACTION = "^-?[0-9]+(?:/[1-9][0-9]*)?$"
_BASE64 = (
    "(?:[A-Za-z0-9{more}]{{4}})*(?:[A-Za-z0-9{more}][AQgw]==|[A-Za-z0-9{more}]{{2}}[AEIMQUYcgkosw048]=)?"
)
# The same for bytes that are ASCII text: each byte's first bit is 0.
_1ST, _2ND, _3RD = "[A-Za-f]", "[A-HQ-Xg-nw-z0-3]", "[ABEFIJMNQRUVYZcdghklopstwx014589]"
_BASE64_TEXT = (
    f"(?:{_1ST}{_2ND}{_3RD}[A-Za-z0-9{{more}}])*(?:{_1ST}[AQgw]==|{_1ST}{_2ND}[AEIMQUYcgkosw048]=)?"
)
_UNHASHABLE = ("list", "dict", "set", "typed-dict")
_NUMBER_CONSTRAINTS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_NO_KEYS = "no pattern describes the constraints of its keys; leave some to a validator"
_ANY = ""
_NO_SPACE = r"[^\s\x1c-\x1f\x85]"  # the characters that `str.strip` keeps
_MARKS = re.compile(r"\\.|\[\^?|\]", re.DOTALL)  # escapes, and the ends of classes
_NEGATED = {r"\D": r"[\x00-/:-\x7f]", r"\W": r"[\x00-/:-@\[-^`{-\x7f]"}  # in ASCII
_NOT_ASCII, _NEXT_LINE = "\x80-\U0010ffff", "\x85"
_BYTE_SIZE = r"^\s*(\d*\.?\d+)\s*(\w+)?"  # pydantic's pattern of ByteSize; any word may be the unit

PATTERNS = {
    "date-time": f"^{formats.DATE}[Tt]{_CLOCK}{formats.ZONE}?$",
    "time": f"^{_CLOCK}{formats.ZONE}?$",
    "duration": f"^-?P(?:[0-9]{{1,5}}W|{_DAYS}(?:{_HOURS})?|{_HOURS})$",
    "email": f"^{_EMAIL}$",
    "name-email": f"^{_EMAIL}$",
    **{
        f"uuid{version}": f"^{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89ABab]{_HEX}{{3}}-{_HEX}{{12}}$"
        for version in range(1, 9)
    },
    "base64": f"^{_BASE64.format(more='+/')}$",
    "base64url": f"^{_BASE64.format(more='_-')}$",
    "base64-text": f"^{_BASE64_TEXT.format(more='+/')}$",
    "base64url-text": f"^{_BASE64_TEXT.format(more='_-')}$",
    "fraction": _FRACTION,
    "ipvanyaddress": f"^(?:{_IPV4}|{_IPV6})$",
    "ipv4interface": f"^{_IPV4}(?:/(?:3[0-2]|[12]?[0-9]))?$",
    "ipv6interface": f"^(?:{_IPV6})(?:/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9]))?$",
    "ipvanyinterface": f"^(?:{_IPV4}|{_IPV6})$",
    "ipv4network": f"^(?:{_SUBNET}|{_IPV4}(?:/32)?)$",
    "ipv6network": f"^(?:(?:{_HEX}{{1,4}}:){{4}}:/64|(?:{_IPV6})(?:/128)?)$",
    "ipvanynetwork": f"^(?:{_SUBNET}|{_IPV4}|{_IPV6})$",
}
"""Patterns of pydantic's formats of strings that differ from the specification's. A subset of the texts that pydantic
takes: time zones may be missing, and lengths are those that fit the type."""


class _AnswerSchema(GenerateJsonSchema):
    """The JSON schema of the texts that an answer may be. Each method is pydantic's for one kind of type."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  # as pydantic declares it

    _reason_for_skip = "its choices have none"

    @property
    def mode(self) -> Literal["validation"]:
        return "validation"  # whatever the config of a model says

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        node = super().generate_inner(schema)
        if node.get("pattern") == _BYTE_SIZE:
            return {**node, "pattern": r"^[0-9]+(?:\.[0-9]+)? ?(?:(?:[kMGTPE]i?)?B)?$"}
        kind = node.get("format", "")
        if kind == "zoneinfo":
            return {"type": "string", "enum": sorted(available_timezones())}
        if schema.get("schema", {}).get("type") == "str" and f"{kind}-text" in PATTERNS:
            kind += "-text"
        pattern = PATTERNS.get(kind)
        if pattern is None or "pattern" in node:
            return node
        return {**{key: value for key, value in node.items() if key != "format"}, "pattern": pattern}

    def datetime_schema(self, schema: core_schema.DatetimeSchema) -> JsonSchemaValue:
        zone = {"naive": "", "aware": formats.ZONE}.get(str(schema.get("tz_constraint")), f"{formats.ZONE}?")
        return {"type": "string", "pattern": f"^{formats.DATE}[Tt]{_CLOCK}{zone}$"}

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        number = dict(super().decimal_schema(schema)["anyOf"][0])
        is_bounded = len(number) > 1
        digits, places = schema.get("max_digits"), schema.get("decimal_places")
        if digits is not None and places is None and is_bounded:
            places = _places(number, digits)
        if digits is not None and places is not None:
            places = min(places, digits)
        if not is_bounded:
            number |= _DOUBLES
        if places is not None:
            step = Decimal(10) ** -places
            number.setdefault("multipleOf", float(step))
            if digits is not None:
                largest = float(Decimal(10) ** (min(digits, DOUBLE_DIGITS) - places) - step)
                number["maximum"] = min(number.get("maximum", largest), largest)
                number["minimum"] = max(number.get("minimum", -largest), -largest)
                if digits == places:  # pydantic counts the digit of a 0 that has no point
                    number["minimum"] = max(number["minimum"], float(step))
        if is_bounded:  # no pattern bounds a value
            return number
        text = {"type": "string", "pattern": _decimal_pattern(digits, places)}
        is_exact = digits is None or (places is not None and places < digits <= DOUBLE_DIGITS)
        return {"anyOf": [number, text]} if is_exact else text

    def fraction_schema(self, schema: Any) -> JsonSchemaValue:
        number = dict(super().fraction_schema(schema)["anyOf"][0])
        if len(number) > 1:  # it has bounds, which no pattern has
            return number
        number |= _DOUBLES
        return {"anyOf": [number, {"type": "string", "pattern": _FRACTION}]}

    def complex_schema(self, schema: Any) -> JsonSchemaValue:
        return {"type": "string", "pattern": f"^-?{_NUMBER}(?:[+-]{_NUMBER}j)?$"}

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        node: JsonSchemaValue = {"type": "string", "format": "binary"}
        low, high = schema.get("min_length", 0), schema.get("max_length", "")
        encoding = self._config.val_json_bytes
        if encoding == "hex":
            return {"type": "string", "pattern": f"^(?:{_HEX}{{2}}){{{low},{high}}}$"}
        if encoding == "base64":
            if low or high != "":
                raise PydanticInvalidForJsonSchema("no pattern bounds the number of bytes in Base64")
            return {**node, "format": "base64url"}
        if low:
            node["minLength"] = low
        if high != "":  # in bytes; JSON counts characters
            node |= {"maxLength": high, "pattern": r"^[\x00-\x7f]*$"}
        return node

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        node = super().str_schema(schema)
        pattern = schema.get("pattern")
        if isinstance(pattern, re.Pattern) and pattern.flags & re.VERBOSE:
            raise PydanticInvalidForJsonSchema("write its pattern without re.VERBOSE")
        if "pattern" in node:
            node["pattern"] = _for_ascii(node["pattern"])
        if not schema.get("strip_whitespace", self._config.str_strip_whitespace):
            return node
        # Lengths and patterns hold after stripping, so nothing may be there to strip.
        some = rf"{_NO_SPACE}(?:[\s\S]*{_NO_SPACE})?"
        if "pattern" in node:
            node["allOf"] = [{"pattern": f"^(?:{some})?$"}]
        elif node.get("minLength"):
            node["pattern"] = f"^{some}$"
        return node

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        for value in schema["expected"]:
            if isinstance(value, Enum) and not isinstance(value, str | int):
                raise PydanticInvalidForJsonSchema(
                    f"pydantic takes no JSON for {value!s} in a Literal; derive {type(value).__name__} from str, too"
                )
            if isinstance(value, bytes):
                raise PydanticInvalidForJsonSchema(f"no JSON value is the literal {value!r}")
        return super().literal_schema(schema)

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        for member in schema["members"]:
            if not isinstance(member.value, str | int | float | None):
                raise PydanticInvalidForJsonSchema(f"no JSON value is {member!s}, which is {member.value!r}")
        return super().enum_schema(schema)

    def url_schema(self, schema: core_schema.UrlSchema) -> JsonSchemaValue:
        return _url(schema)

    def multi_host_url_schema(self, schema: core_schema.MultiHostUrlSchema) -> JsonSchemaValue:
        return _url(schema)

    # Sets: a repeated element is the same set, so only a lower bound on the number needs `uniqueItems`.

    def set_schema(self, schema: core_schema.SetSchema) -> JsonSchemaValue:
        return self._repeatable(super().set_schema(schema), schema)

    def frozenset_schema(self, schema: core_schema.FrozenSetSchema) -> JsonSchemaValue:
        return self._repeatable(super().frozenset_schema(schema), schema)

    def _repeatable(self, node: JsonSchemaValue, schema: Any) -> JsonSchemaValue:
        element = schema.get("items_schema", {})
        is_class = element.get("type") in ("model", "dataclass")
        if element.get("type") in _UNHASHABLE or (is_class and element["cls"].__hash__ is None):
            name = element["cls"].__name__ if is_class else element["type"]
            raise PydanticInvalidForJsonSchema(
                f"a set's elements must be hashable, and {name} is not; use a list"
            )
        return node if node.get("minItems", 0) > 1 else {k: v for k, v in node.items() if k != "uniqueItems"}

    # Dicts: pydantic's schemas allow keys that are not of the keys' type.

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        return self._with_keys(super().dict_schema(schema), schema)

    def frozendict_schema(self, schema: Any) -> JsonSchemaValue:
        return self._with_keys(super().frozendict_schema(schema), schema)

    def ordered_dict_schema(self, schema: Any) -> JsonSchemaValue:
        return self._with_keys(super().ordered_dict_schema(schema), schema)

    def counter_schema(self, schema: Any) -> JsonSchemaValue:
        return self._with_keys(super().counter_schema(schema), schema)

    # Types that no text, or only some texts of their schema, can be.

    def json_schema(self, schema: core_schema.JsonSchema) -> JsonSchemaValue:
        return self.handle_invalid_for_json_schema(
            schema, "JSON within a string (Json[...]); use the inner type"
        )

    def is_subclass_schema(self, schema: core_schema.IsSubclassSchema) -> JsonSchemaValue:
        return self.handle_invalid_for_json_schema(schema, "a class as a value")

    # Unions: the field by which pydantic tells the choices apart must be in the text, even if it has a default.

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        node = super().tagged_union_schema(schema)
        choices = node["oneOf"]
        if not choices:
            raise PydanticInvalidForJsonSchema(self._reason_for_skip)
        name = node.get("discriminator", {}).get("propertyName")
        if name is not None:
            for choice in choices:
                choice["required"] = sorted({*choice.get("required", ()), name})
        return {"anyOf": choices}  # a function may choose among types that share texts, so not "oneOf"

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        if kind == "skipped-choice":
            self._reason_for_skip = detail
        super().emit_warning(kind, detail)

    # Names of fields.

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        outer = self.by_alias
        # pydantic 2.11 to 2.13 have this setting, and ignore it here.
        if "validate_by_alias" in ConfigDict.__annotations__:
            self.by_alias = schema["cls"].model_config.get("validate_by_alias") is not False
        try:
            return super().model_schema(schema)
        finally:
            self.by_alias = outer

    def model_fields_schema(self, schema: core_schema.ModelFieldsSchema) -> JsonSchemaValue:
        node = super().model_fields_schema(schema)
        if self._config.extra == "allow":
            # pydantic reads a field by all its names, so the others are no names of extra properties.
            for name, field in schema["fields"].items():
                for other in (name, *_strings(field.get("validation_alias"))):
                    node["properties"].setdefault(other, {"not": {}})
        return node

    def model_field_schema(self, schema: core_schema.ModelField) -> JsonSchemaValue:
        self._check_alias(schema)
        return super().model_field_schema(schema)

    def dataclass_field_schema(self, schema: core_schema.DataclassField) -> JsonSchemaValue:
        self._check_alias(schema)
        return super().dataclass_field_schema(schema)

    def _check_alias(self, field: Any) -> None:
        """Refuse a field that pydantic reads only from within another one (`AliasPath`)."""
        alias = field.get("validation_alias")
        if (
            isinstance(alias, list)
            and alias
            and not any(len(path) == 1 for path in alias if isinstance(path, list))
        ):
            raise PydanticInvalidForJsonSchema(
                "a field is read from an AliasPath; give it a plain alias, too"
            )

    def _with_keys(self, node: JsonSchemaValue, schema: Any) -> JsonSchemaValue:
        """The schema of a dict, with names that are values of the keys' type."""
        if "keys_schema" not in schema:
            return node
        names, patterns = self._keys(self.generate_inner(schema["keys_schema"]))
        if patterns == [_ANY]:
            return node
        values = node.get("additionalProperties", True)
        for others in node.get("patternProperties", {}).values():
            values = others
        limits: dict[str, Any] = {key: node[key] for key in ("minProperties", "maxProperties") if key in node}
        parts: dict[str, Any] = {}
        if names:
            parts["properties"] = dict.fromkeys(names, values)
        if patterns:
            parts["patternProperties"] = {"|".join(f"(?:{pattern})" for pattern in patterns): values}
        return {"type": "object", **parts, "additionalProperties": False, **limits}

    def _keys(self, node: JsonSchemaValue) -> tuple[list[str], list[str]]:
        """The names, and the patterns of names, that are keys of a dict with this schema of its keys."""
        if "$ref" in node:
            node = self.get_schema_from_definitions(JsonRef(node["$ref"])) or node
        values = node.get("enum", [node["const"]] if "const" in node else None)
        if values is not None and all(isinstance(value, str) for value in values):
            return list(values), []
        if "anyOf" in node:
            return self._keys_of_any(node["anyOf"])
        match None if values is not None else node.get("type"):
            case "string":
                pattern = node.get("pattern") or formats.PATTERNS.get(node.get("format", ""))
                low, high = node.get("minLength", 0), node.get("maxLength", "")
                has_length = bool(low) or high != ""
                if pattern is None or not (has_length or "allOf" in node):
                    return [], [pattern or (rf"^[\s\S]{{{low},{high}}}$" if has_length else _ANY)]
            case "integer":
                return _integer_keys(node)
            case "number":
                constraints = {key: node[key] for key in _NUMBER_CONSTRAINTS if key in node}
                if constraints in ({}, {"minimum": 0}):
                    return [], [f"^{'' if constraints else '-?'}{_NUMBER}$"]
            case "boolean":
                return ["true", "false"], []
            case "array" | "object" | "null" | None if node:
                raise PydanticInvalidForJsonSchema(
                    "the keys of an object are texts, and no text is such a key of a dict"
                )
            case _ if not node:
                return [], [_ANY]
        raise PydanticInvalidForJsonSchema(_NO_KEYS)

    def _keys_of_any(self, nodes: list[JsonSchemaValue]) -> tuple[list[str], list[str]]:
        """The names and patterns of `_keys` for each of these schemas, without those that no text satisfies."""
        names: list[str] = []
        patterns: list[str] = []
        error: Exception | None = None
        for node in nodes:
            try:
                more_names, more_patterns = self._keys(node)
            except PydanticInvalidForJsonSchema as raised:
                error = raised
            else:
                names += more_names
                patterns += more_patterns
        if error is not None and not names and not patterns:
            raise error
        return names, [_ANY] if _ANY in patterns else patterns


def _integer_keys(node: JsonSchemaValue) -> tuple[list[str], list[str]]:
    """The names, or the pattern of names, that are integers with these bounds."""
    low, high, step = node.get("minimum"), node.get("maximum"), node.get("multipleOf", 1)
    if "exclusiveMinimum" in node:
        low = node["exclusiveMinimum"] + 1
    if "exclusiveMaximum" in node:
        high = node["exclusiveMaximum"] - 1
    if low is not None and high is not None and (high - low) // step < MAX_KEYS:
        return [str(key) for key in range(low + -low % step, high + 1, step)], []
    if high is not None or step != 1 or low not in (None, 0, 1):
        raise PydanticInvalidForJsonSchema(_NO_KEYS)
    digits = "[1-9][0-9]*" if low == 1 else "(?:0|[1-9][0-9]*)"
    return [], [f"^{'-?' if low is None else ''}{digits}$"]


def _decimal_pattern(digits: int | None, places: int | None) -> str:
    """A pattern of decimal numbers with at most `digits` digits, `places` of them after the point. None: no limit."""

    def fraction(limit: int | None) -> str:
        many = "+" if limit is None else f"{{1,{limit}}}"
        return "" if limit == 0 else rf"(?:\.[0-9]{many})?"

    if digits is None:
        return f"^-?(?:0|[1-9][0-9]*){fraction(places)}$"
    if digits == places:  # pydantic counts the digit of a 0 without a point
        return rf"^-?0\.[0-9]{{1,{digits}}}$"
    if places is not None:
        return f"^-?(?:0|[1-9][0-9]{{0,{digits - places - 1}}}){fraction(places)}$"
    wholes = [f"[1-9][0-9]{{{size - 1}}}{fraction(digits - size)}" for size in range(1, digits + 1)]
    return f"^-?(?:{'|'.join([f'0{fraction(digits)}', *wholes])})$"


def _places(number: JsonSchemaValue, digits: int) -> int:
    """A number of digits after the point, at most two, that leaves room for the digits of the bounds."""
    largest = max(abs(number.get(bound, 0)) for bound in _NUMBER_CONSTRAINTS[:-1])
    return max(0, min(2, digits - len(str(int(largest)))))


def _url(schema: Any) -> JsonSchemaValue:
    """The schema of URLs with the type's schemes. It leaves out pydantic's limit of 2083 characters, because the
    libraries can't count so far beside a pattern."""
    schemes, limit = schema.get("allowed_schemes"), schema.get("max_length") or MAX_URL
    limits = {"maxLength": limit} if limit < MAX_URL else {}
    host, rest = f"(?:{_NAME}|{_IPV4})", f"{_PATH}{_AFTER_PATH}"
    if schemes == ["file"]:
        return {"type": "string", "pattern": f"^file://{_PATH}$", **limits}
    names = "|".join(map(re.escape, schemes or ("http", "https", "ftp", "ws", "wss")))
    # "file" takes no port and no user, so a scheme of any name has neither.
    others = "" if schemes else f"|[A-Za-z][A-Za-z0-9+.-]*://{host}"
    pattern = f"^(?:(?:{names})://{_USER}{host}{_PORT}{others}){rest}$"
    return {"type": "string", "pattern": pattern, **limits}


def _strings(data: Any) -> Iterator[str]:
    """The strings in nested lists."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, list):
        for part in data:
            yield from _strings(part)


def _for_ascii(pattern: str) -> str:
    r"""A pattern for texts that pydantic's pattern of the same characters matches, too. pydantic's `\d`, `\w` and `\s`
    include characters of other scripts that the libraries' do not. So their negations match ASCII alone here."""
    opening, left_out = "", ""

    def replaced(mark: re.Match[str]) -> str:
        nonlocal opening, left_out
        text = mark[0]
        if text in _NEGATED:
            return _NEGATED[text][1:-1] if opening else _NEGATED[text]
        if text == r"\S" and not opening:
            return rf"[^\s{_NEXT_LINE}]"
        if text in ("[", "[^") and not opening:
            opening, left_out = text, ""
        elif text in (r"\d", r"\w"):
            left_out = _NOT_ASCII
        elif text == r"\s":
            left_out = left_out or _NEXT_LINE
        elif text == "]" and opening:
            ending = f"{left_out}]" if opening == "[^" else "]"
            opening = ""
            return ending
        return text

    return _MARKS.sub(replaced, pattern)


class PythonType:
    """A type that pydantic can validate, or a `TypeAdapter`."""

    def __init__(self, given: Any) -> None:
        """Raises `GuideError` for a type that pydantic does not know."""
        self.name = _name(given)
        self._given = given
        try:
            self._adapter = given if isinstance(given, TypeAdapter) else TypeAdapter(given)
        except Exception as error:  # types may have code of their own
            is_unknown = isinstance(error, PydanticSchemaGenerationError)
            cure = ". For a matcher of your own use Guide.matcher" if is_unknown else ""
            raise GuideError(f"{self.name} is no type for a guide: {_reason(error)}{cure}") from error

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[type[PythonType], tuple[Any]]:
        return PythonType, (self._given,)  # pickle stores the name of a class

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the texts that `parse` takes. Raises `GuideError` if the type has none."""
        try:
            return self._adapter.json_schema(schema_generator=_AnswerSchema)
        except Exception as error:
            raise GuideError(f"{self.name} has no JSON schema: {_reason(error)}") from error

    def parse(self, text: str) -> Any:
        """The object that a JSON text describes. Raises `AnswerError` if the type refuses it."""
        try:
            return self._validated(text)
        except ValidationError as error:
            raise AnswerError(f"the answer is not a valid {self.name}: {_faults(error)}") from error

    def parse_partial(self, text: str) -> Any:
        """The object of the complete elements of the beginning of a JSON list or object. None if the type refuses
        that, and for the beginning of any other JSON."""
        complete = _complete_elements(text)
        try:
            return None if complete is None else self._validated(complete)
        except ValidationError:
            return None

    def _validated(self, text: str) -> Any:
        value = self._adapter.validate_json(_without_surrogates(text))
        # pydantic validates an `Iterable` lazily, and only once.
        return list(value) if type(value).__name__ == "ValidatorIterator" else value


_NOTABLE = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},"]', re.DOTALL)


def _complete_elements(text: str) -> str | None:
    """The beginning of a JSON list or object without the element that is incomplete, and closed. None for other
    text."""
    start = text.lstrip()[:1]
    if start not in ("[", "{"):
        return None
    depth, end = 0, text.index(start) + 1
    for mark in _NOTABLE.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(mark[0], 0)
        if depth == 0:
            return text
        is_element = depth == 1 and mark[0] in ("]", "}")
        if is_element or (depth == 1 and mark[0] == ","):
            end = mark.end() if is_element else mark.start()
        if mark[0] == '"':  # the quote of a string that does not end
            break
    return text[:end] + ("]" if start == "[" else "}")


def _without_surrogates(text: str) -> str:
    r"""Replace escapes of half a character, which JSON allows and pydantic does not."""
    if r"\ud" not in text.lower():
        return text
    try:
        data = json.dumps(json.loads(text), ensure_ascii=False)
    except ValueError:
        return text
    return data.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _name(given: Any) -> str:
    """The name of a type in messages: "Invoice", "list[Invoice]". The constraints of `Annotated` are left out."""
    if isinstance(given, TypeAdapter):
        return _name(given._type)
    origin, args = get_origin(given), get_args(given)
    if origin is Annotated:
        return _name(args[0])
    if origin in (Union, UnionType):
        return " | ".join(map(_name, args))
    if origin is Literal:
        return f"Literal[{', '.join(str(arg) if isinstance(arg, Enum) else repr(arg) for arg in args)}]"
    if origin is not None and args:
        return f"{getattr(given, '__name__', origin.__name__)}[{', '.join(map(_name, args))}]"
    if given in (None, type(None), ...):
        return {...: "..."}.get(given, "None")
    if isinstance(given, type):
        return given.__name__
    return re.sub(r"(?:\b[A-Za-z_]\w*\.|<locals>\.)+(?=\w)", "", str(given))


def _reason(error: Exception) -> str:
    """The first sentence of an error's text."""
    if (
        isinstance(error, PydanticUndefinedAnnotation)
        or getattr(error, "code", None) == "class-not-fully-defined"
    ):
        return "it names a type in quotes that is not defined yet, or not here; name the class itself"
    text = str(error).partition("\n")[0].partition(". Set ")[0]
    return text.rstrip(".") or type(error).__name__


def _faults(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_input=False)
    shown = []
    for fault in faults[:MAX_FAULTS]:
        place = ".".join(map(str, fault["loc"]))
        shown.append(f"{place}: {fault['msg']}" if place else fault["msg"])
    more = f"; and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
    return "; ".join(shown) + more
