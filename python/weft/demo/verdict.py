"""Finds the fault of an answer with an independent validator, and its place in the text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import jsonschema

from weft.tiny.prompts import Json, Schema

MOST = 100
"""The maximum length of a message in characters. Longer messages are cut in the middle."""


@dataclass(frozen=True)
class Fault:
    """A fault in a text: the validator's message, and the range of characters that it is about."""

    message: str
    begin: int
    end: int


def fault(text: str, schema: Schema) -> Fault | None:
    """The most relevant fault of `text`, which should be JSON of `schema`; None if it is valid."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        return Fault(f"not JSON: {error}", error.pos, len(text))
    found = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(value))
    if found is None:
        return None
    begin, end = span(text, list(found.absolute_path))
    return Fault(f"{found.json_path}: {shortened(found.message)}", begin, end)


def shortened(message: str) -> str:
    """Cut the middle out of a long message. Messages are long if they quote a value."""
    half = MOST // 2
    return message if len(message) <= MOST else f"{message[:half]} ... {message[-half:]}"


def span(text: str, path: Sequence[str | int]) -> tuple[int, int]:
    """The range of characters of the value at `path` in a JSON text."""
    begin = _skipped(text, 0)
    for step in path:
        begin = _member(text, begin, step)
    return begin, _read(text, begin)[1]


def _member(text: str, begin: int, step: str | int) -> int:
    """The position of a member's value in the object or array at `begin`. If a name occurs twice, the last one
    counts."""
    is_object = text[begin] == "{"
    found, place, number = begin, _skipped(text, begin + 1), 0
    while text[place] not in "]}":
        name: Json = number
        if is_object:
            name, place = _read(text, place)
            place = _skipped(text, _skipped(text, place) + 1)  # past the colon
        if name == step:
            found = place
        place = _skipped(text, _read(text, place)[1])
        place = _skipped(text, place + 1) if text[place] == "," else place
        number += 1
    return found


def _read(text: str, begin: int) -> tuple[Json, int]:
    return json.JSONDecoder().raw_decode(text, begin)


def _skipped(text: str, place: int) -> int:
    """The position after the whitespace at `place`."""
    while place < len(text) and text[place] in " \t\r\n":
        place += 1
    return place
