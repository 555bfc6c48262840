"""What the demo asks for: forms that weft-tiny was not trained to fill in, and one that it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.tiny.prompts import Schema, render_prompt

TEXT = {"type": "string"}
COUNT = {"type": "integer"}
DATE = "^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"


@dataclass(frozen=True)
class Form:
    """A text, and the schema that the answer is to have."""

    asks: str
    text: str
    schema: Schema
    rule: str = ""
    """What the schema demands and weft-tiny's prompt does not show."""

    @property
    def prompt(self) -> str:
        """Both, as weft-tiny reads them."""
        return render_prompt(self.text, self.schema)


def closed(**properties: Any) -> Schema:
    """The schema of an object with these properties, all of them, and no other."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


FORMS = (
    Form(
        "one word of three",
        "The 9:40 to Lyon is late. Ada Berg boards with 2 bags.",
        closed(mood={"enum": ["calm", "angry", "lost"]}, bags=COUNT),
    ),
    Form(
        "a date as YYYY-MM-DD",
        "Order 4711 was paid on 3 May 2026.",
        closed(date={"type": "string", "pattern": DATE}, order=COUNT),
        f"pattern {DATE}",
    ),
    Form(
        "a fixed unit",
        "The parcel weighs 2.5 kg.",
        closed(weight={"type": "number"}, unit={"const": "kg"}),
    ),
    Form(
        "a list of two",
        "Ada is 31. Bo is 7.",
        {"type": "array", "items": closed(name=TEXT, age=COUNT), "minItems": 2, "maxItems": 2},
        "minItems 2, maxItems 2",
    ),
    Form(
        "objects within objects",
        "Ada Berg lives in Lyon, France.",
        closed(person=closed(name=closed(first=TEXT, last=TEXT), home=closed(city=TEXT, country=TEXT))),
    ),
    Form(
        "a record of the kind that it was trained on",
        "Ada Berg is 31 years old.",
        closed(name=TEXT, age=COUNT),
    ),
)
