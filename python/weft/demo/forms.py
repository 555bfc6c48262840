"""The demo's forms. weft-tiny was trained only on records like the last form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.tiny.prompts import Schema, render_prompt

TEXT = {"type": "string"}
COUNT = {"type": "integer"}
DATE = "^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"


@dataclass(frozen=True)
class Form:
    """A text, and the schema of the answer."""

    asks: str
    text: str
    schema: Schema
    rule: str = ""
    """A constraint of the schema that weft-tiny's prompt does not show."""

    @property
    def prompt(self) -> str:
        """The prompt for weft-tiny."""
        return render_prompt(self.text, self.schema)


def closed(**properties: Any) -> Schema:
    """The schema of an object with exactly these properties, all required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


FORMS = (
    Form(
        "one word of three",
        "Tom Lund is 52 and wears a green coat.",
        closed(name=TEXT, age=COUNT, coat={"enum": ["red", "green", "blue"]}),
    ),
    Form(
        "a fixed unit",
        "The parcel weighs 2.5 kg.",
        closed(weight={"type": "number"}, unit={"const": "kg"}),
    ),
    Form(
        "a number in quotes",
        "Ada Berg is 31 years old.",
        closed(name=TEXT, age={"type": "string", "pattern": "^[0-9]+$"}),
        "pattern ^[0-9]+$",
    ),
    Form(
        "a date, and yes",
        "It was paid on 2026-05-03.",
        closed(date={"type": "string", "pattern": DATE}, paid={"const": "yes"}),
        f"pattern {DATE}",
    ),
    Form(
        "objects within objects",
        "Ada Berg lives in Lyon, France.",
        closed(name=TEXT, home=closed(city=TEXT, country=TEXT, planet={"const": "Earth"})),
    ),
    Form(
        "a record of the kind that it was trained on",
        "Ada Berg is 31 years old.",
        closed(name=TEXT, age=COUNT),
    ),
)
