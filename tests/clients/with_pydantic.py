"""pydantic alone: the schema of a type over HTTP, and an object of the answer."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

from asked import ANSWER, KEY, PROMPT, URL
from pydantic import BaseModel, Field, TypeAdapter
from typing_extensions import TypedDict


class Person(BaseModel):
    name: str
    age: int


@dataclass
class PersonData:
    name: str
    age: int


class PersonDict(TypedDict):
    name: str
    age: int


class Point(NamedTuple):
    x: int
    label: Literal["a", "b"]


class Color(Enum):
    RED = "red"
    BLUE = "blue"


def ask(given: Any) -> Any:
    """The object of an answer under the type's schema."""
    adapter = TypeAdapter(given)
    body = {"model": "weft-tiny", "prompt": PROMPT, "max_tokens": 60, "temperature": 0, "on_length": "close"}
    data = json.dumps({**body, "guide": {"json_schema": adapter.json_schema()}}).encode()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{URL}/completions", data, headers)) as reply:
        return adapter.validate_json(json.load(reply)["choices"][0]["text"])


assert ask(Person) == Person(**ANSWER)
assert ask(PersonData) == PersonData(**ANSWER)
assert ask(PersonDict) == ANSWER
assert ask(list[Person]) == [Person(**ANSWER)]
assert ask(Person | None) == Person(**ANSWER)
KINDS: list[tuple[Any, type]] = [
    (Point, Point),
    (Color, Color),
    (Literal["yes", "no"], str),
    (Annotated[int, Field(ge=0)], int),
    (dict[str, int], dict),
    (tuple[bool, str], tuple),
    (date, date),
    (UUID, UUID),
]
for given, kind in KINDS:
    value = ask(given)
    assert isinstance(value, kind), (given, value)
