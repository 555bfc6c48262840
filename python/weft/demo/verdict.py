"""What is wrong with an answer, by a validator that is not weft's, and where in its text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import jsonschema

from weft.tiny.prompts import Json, Schema

MOST = 100
"""Characters of a message that are shown."""


@dataclass(frozen=True)
class Fault:
    """The first thing wrong with a text: what the validator says, and the characters it means."""

    message: str
    begin: int
    end: int


def fault(text: str, schema: Schema) -> Fault | None:
    """What is wrong with `text` as JSON of `schema`; None if nothing is."""
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
    """A message without its middle where it quotes a long value."""
    half = MOST // 2
    return message if len(message) <= MOST else f"{message[:half]} ... {message[-half:]}"


def span(text: str, path: Sequence[str | int]) -> tuple[int, int]:
    """Where in a JSON text the value at `path` stands."""
    begin = _skipped(text, 0)
    for step in path:
        begin = _member(text, begin, step)
    return begin, _read(text, begin)[1]


def _member(text: str, begin: int, step: str | int) -> int:
    """Where a member of the object or array at `begin` stands; the last one of a name that comes twice."""
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
    """Past the blanks at `place`."""
    while place < len(text) and text[place] in " \t\r\n":
        place += 1
    return place
