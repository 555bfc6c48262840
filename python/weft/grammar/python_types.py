"""Python types as guides: the JSON schema of a type, and the object that an answer describes, both through pydantic.

pydantic's JSON schemas document a type; here they must enforce it. `_AnswerSchema` changes them where a grammar library
enforces no such keyword (`uniqueItems`), and where a text of the schema is no value of the type (a key "abc" of
`dict[int, str]`). Two kinds of rules stay outside a guide, and are checked when an answer is parsed: validators in
Python, and constraints for which JSON Schema has no keyword, such as `Field(ge=date(2024, 1, 1))`.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
from pydantic.json_schema import GenerateJsonSchema, JsonRef, JsonSchemaValue
from pydantic_core import core_schema

from weft.errors import AnswerError, GuideError
from weft.grammar.schema import formats

DOUBLE_DIGITS = 15
"""The number of decimal digits that a JSON number keeps, since pydantic reads it as a double."""
_DOUBLES = {"minimum": 1 - 10**DOUBLE_DIGITS, "maximum": 10**DOUBLE_DIGITS - 1}
MAX_FAULTS = 3
"""The number of faults of an answer that an error lists."""

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
_ANY = ""
_NO_SPACE = r"[^\s\x1c-\x1f\x85]"  # the characters that `str.strip` keeps
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

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        node = super().generate_inner(schema)
        if node.get("pattern") == _BYTE_SIZE:
            return {**node, "pattern": r"^[0-9]+(?:\.[0-9]+)? ?(?:(?:[kMGTPE]i?)?B)?$"}
        pattern = PATTERNS.get(node.get("format", ""))
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
        if not is_bounded:
            number |= _DOUBLES
        if places is not None:
            number.setdefault("multipleOf", float(Decimal(10) ** -places))
            if digits is not None:
                largest = float(Decimal(10) ** (digits - places) - Decimal(10) ** -places)
                number["maximum"] = min(number.get("maximum", largest), largest)
                number["minimum"] = max(number.get("minimum", -largest), -largest)
        if is_bounded:  # no pattern bounds a value
            return number
        text = {"type": "string", "pattern": _decimal_pattern(digits, places)}
        is_exact = digits is None or (places is not None and digits <= DOUBLE_DIGITS)
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
        node = super().bytes_schema(schema)
        if "maxLength" in node and node.get("format") == "binary":  # in bytes; JSON counts characters
            node["pattern"] = r"^[\x00-\x7f]*$"
        return node

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        node = super().str_schema(schema)
        if schema.get("strip_whitespace") and node.get("minLength") and "pattern" not in node:
            node["pattern"] = rf"^{_NO_SPACE}(?:[\s\S]*{_NO_SPACE})?$"  # lengths count after stripping
        return node

    def url_schema(self, schema: core_schema.UrlSchema) -> JsonSchemaValue:
        return _url(schema.get("allowed_schemes"))

    def multi_host_url_schema(self, schema: core_schema.MultiHostUrlSchema) -> JsonSchemaValue:
        return _url(schema.get("allowed_schemes"))

    # Sets: a repeated element is the same set, so only a lower bound on the number needs `uniqueItems`.

    def set_schema(self, schema: core_schema.SetSchema) -> JsonSchemaValue:
        return _repeatable(super().set_schema(schema))

    def frozenset_schema(self, schema: core_schema.FrozenSetSchema) -> JsonSchemaValue:
        return _repeatable(super().frozenset_schema(schema))

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
            parts = [self._keys(part) for part in node["anyOf"] if part.get("type") != "null"]
            patterns = [pattern for _, more in parts for pattern in more]
            return [name for more, _ in parts for name in more], [_ANY] if _ANY in patterns else patterns
        match None if values is not None else node.get("type"):
            case "string":
                lengths = node.get("minLength", 0), node.get("maxLength", "")
                default = _ANY if lengths == (0, "") else rf"^[\s\S]{{{lengths[0]},{lengths[1]}}}$"
                return [], [node.get("pattern") or formats.PATTERNS.get(node.get("format", ""), default)]
            case "integer":
                lowest = node.get("minimum", node.get("exclusiveMinimum", -2) + 1)
                digits = "[1-9][0-9]*" if lowest > 0 else "(?:0|[1-9][0-9]*)"
                return [], [f"^{digits}$" if lowest >= 0 else f"^-?{digits}$"]
            case "number":
                return [], [f"^-?{_NUMBER}$"]
            case "boolean":
                return ["true", "false"], []
            case _ if not node:
                return [], [_ANY]
        raise PydanticInvalidForJsonSchema(
            "the keys of an object are texts, and no text is such a key of a dict"
        )


def _repeatable(node: JsonSchemaValue) -> JsonSchemaValue:
    return node if node.get("minItems", 0) > 1 else {k: v for k, v in node.items() if k != "uniqueItems"}


def _decimal_pattern(digits: int | None, places: int | None) -> str:
    """A pattern of the decimal numbers with at most so many digits, and so many after the point."""

    def fraction(limit: int | None) -> str:
        limits = "" if limit is None else limit
        return "" if limit == 0 else rf"(?:\.[0-9]{{1,{limits}}})?"

    if digits is None:
        return f"^-?(?:0|[1-9][0-9]*){fraction(places)}$"
    if places is not None:
        whole = "0" if digits <= places else f"(?:0|[1-9][0-9]{{0,{digits - places - 1}}})"
        return f"^-?{whole}{fraction(min(digits, places))}$"
    wholes = [f"[1-9][0-9]{{{size - 1}}}{fraction(digits - size)}" for size in range(1, digits + 1)]
    return f"^-?(?:{'|'.join([f'0{fraction(digits)}', *wholes])})$"


def _url(schemes: list[str] | None) -> JsonSchemaValue:
    """The schema of URLs with one of these schemes (None: any). It leaves out pydantic's limit of 2083 characters,
    because the libraries can't count so far beside a pattern."""
    host, rest = f"(?:{_NAME}|{_IPV4})", f"{_PATH}{_AFTER_PATH}"
    if schemes == ["file"]:
        return {"type": "string", "pattern": f"^file://{_PATH}$"}
    names = "|".join(map(re.escape, schemes or ("http", "https", "ftp", "ws", "wss")))
    # "file" takes no port and no user, so a scheme of any name has neither.
    others = "" if schemes else f"|[A-Za-z][A-Za-z0-9+.-]*://{host}"
    return {"type": "string", "pattern": f"^(?:(?:{names})://{_USER}{host}{_PORT}{others}){rest}$"}


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
            return self._adapter.validate_json(_without_surrogates(text))
        except ValidationError as error:
            raise AnswerError(f"the answer is not a valid {self.name}: {_faults(error)}") from error

    def parse_partial(self, text: str) -> Any:
        """The object of the complete elements of the beginning of a JSON list or object. None if the type refuses
        that, and for the beginning of any other JSON."""
        complete = _complete_elements(text)
        try:
            return None if complete is None else self._adapter.validate_json(_without_surrogates(complete))
        except ValidationError:
            return None


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
    """The name of a type in messages: "Invoice", "list[Invoice]"."""
    if isinstance(given, TypeAdapter):
        return re.sub(r"^TypeAdapter\((.*)\)$", r"\1", repr(given))
    if isinstance(given, type) and get_origin(given) is None:
        return given.__name__
    return re.sub(r"(?:\b[A-Za-z_]\w*\.|<locals>\.)+(?=\w)", "", str(given))


def _reason(error: Exception) -> str:
    """The first sentence of an error's text."""
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
