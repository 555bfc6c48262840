"""Validates answers against a JSON schema with the `jsonschema` package, and corrects its errors.

Multiples are exact. Other numbers are tried as decimals, then as doubles, which most readers use. Patterns follow
JavaScript: `$` is the end of the text, and `\\d` and `\\w` are ASCII. Formats are those of `formats.py`. If a
name is duplicated, the answer is validated with its last value, and again with its first.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any

from jsonschema import FormatChecker, ValidationError
from jsonschema.validators import Draft202012Validator, extend, validator_for

from weft.grammar.schema.structure import subschemas
from weft_bench.grammar import formats

VALID, INVALID, NO_JSON, UNJUDGED = "valid", "invalid", "no JSON", "unjudged"
Number = int | float | Decimal
NUMBERS = (Decimal, float)
PARTS = re.compile(r"(?P<escape>\\.)|(?P<edge>\[\^?\]?|\])|(?P<end>\$)", re.DOTALL)
SPACES = r" \t\n\v\f\r\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
ESCAPES = {r"\d": "0-9", r"\w": "A-Za-z0-9_", r"\s": SPACES}


def verdict(schema: Any, text: str) -> str:
    """Return `VALID`, `INVALID`, `NO_JSON`, or `UNJUDGED` if `jsonschema` can't decide."""
    try:
        text.encode()  # lone surrogates stand for invalid UTF-8
        values = [list(_readings(text, number)) for number in NUMBERS]
    except (ValueError, RecursionError):
        return NO_JSON
    except ArithmeticError:  # an exponent of more than 18 digits
        return UNJUDGED
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # patterns that later Python versions read differently
            return _judged(schema, values)
    except Exception:  # a dangling reference, an unknown pattern, too deep nesting
        return UNJUDGED


def _judged(schema: Any, values: list[list[Any]]) -> str:
    for number, read in zip(NUMBERS, values, strict=True):
        validator = _validator(schema, number)
        with suppress(ArithmeticError):  # numbers beyond doubles
            if all(validator.is_valid(value) for value in read):
                return VALID
    return INVALID


def _readings(text: str, number: type) -> Iterator[Any]:
    """Yield the values that a text may have. There are two if a name is duplicated."""
    twice = []

    def last(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice.append(pairs)
        return found

    def first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return dict(reversed(pairs))

    yield _loaded(text, number, last)
    if twice:
        yield _loaded(text, number, first)


def _loaded(text: str, number: type, of_pairs: Any = None) -> Any:
    return json.loads(text, parse_float=number, parse_constant=_no_constant, object_pairs_hook=of_pairs)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _validator(schema: Any, number: type) -> Any:
    kind = validator_for(schema, default=Draft202012Validator)
    exact = _loaded(json.dumps(schema), number)
    for _, node in list(subschemas(exact)):
        if isinstance(node.get("pattern"), str):
            node["pattern"] = _exact_pattern(node["pattern"])
        if isinstance(node.get("patternProperties"), dict):
            node["patternProperties"] = {
                _exact_pattern(pattern): one for pattern, one in node["patternProperties"].items()
            }
    types = kind.TYPE_CHECKER
    if types.is_type(1.0, "integer"):  # since draft 6
        types = types.redefine("integer", lambda _, value: _is_number(value) and is_multiple(value, 1))
    checker = FormatChecker(formats=())
    checker.checkers = {name: (_of_text(check), ()) for name, check in formats.CHECKS.items()}
    made: Any = extend(  # type: ignore[no-untyped-call]
        kind, {"multipleOf": _multiple_of}, type_checker=types
    )
    return made(exact, format_checker=checker)


def _of_text(check: Any) -> Any:
    return lambda value: not isinstance(value, str) or check(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _multiple_of(validator: Any, step: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if _is_number(value) and not is_multiple(value, step):
        yield ValidationError(f"{value!r} is not a multiple of {step!r}")


def is_multiple(value: Number, step: Number) -> bool:
    """Whether a number, exactly as written, is an integer multiple of another. Handles any exponent."""
    digits, power = _parts(value)
    step_digits, step_power = _parts(step)
    power -= step_power
    if digits == 0:
        return True
    if power >= 0:
        return digits * pow(10, power, step_digits) % step_digits == 0
    # A number has at most len(digits) trailing zeros. This bounds the power below.
    return -power <= len(str(digits)) and digits % (step_digits * 10**-power) == 0


def _parts(value: Number) -> tuple[int, int]:
    """Return an integer and a power of ten whose product is the value. Raises `ArithmeticError` for an infinite
    value."""
    _, digits, power = Decimal(str(value)).as_tuple()
    if not isinstance(power, int):
        raise ArithmeticError("an exponent beyond a double's")
    return int("".join(map(str, digits))), power


def _exact_pattern(pattern: str) -> str:
    """Translate a JavaScript pattern to Python."""
    found, at, in_class = "", 0, False
    for part in PARTS.finditer(pattern):
        found += pattern[at : part.start()]
        at, text = part.end(), part[0]
        if part["edge"] and (text == "]" or not in_class):
            in_class = text != "]"
        elif text.lower() in ESCAPES and (in_class or text.islower()):
            members = ESCAPES[text] if text.islower() else text
            text = members if in_class else f"[{members}]"
        elif text.lower() in ESCAPES:
            text = f"[^{ESCAPES[text.lower()]}]"
        elif text == "$" and not in_class:
            text = r"\Z"
        found += text
    return found + pattern[at:]
