"""Writes answers that follow a structural tag, together with the result that a parser must read from them."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from support.parsing.tools import value_of
from support.parsing.xml import WRITERS
from weft import Guide
from weft.parsing import Answer, Call

THOUGHT = {
    "</think>",
    "<|END_THINKING|>",
    "</mm:think>",
    "<|close|>think<|sep|>",
    "<|channel|>analysis<|message|>",
}
"""Markers around reasoning only."""
PROSE = [
    "Hello.",
    "a\n\nb",
    " Let me see. ",
    "x < y, {1: 2}",
    "<tool",
    "größe 漢字 🙂",
    "Well:\n\n",
    "}",
    " <x>\n",
]


@dataclass
class Written:
    """An answer's text, the parsed answer, and the values of its calls' arguments."""

    text: str = ""
    answer: Answer = field(default_factory=Answer)
    values: list[Any] = field(default_factory=list)


def written(guide: Guide, tools: list[dict[str, Any]], seed: int) -> Written:
    """Write an answer under a guide for tool calls. The description of each parameter schema must be the tool's
    name."""
    writer = Writer(tools, random.Random(seed))
    writer.write(json.loads(guide.source)["format"])
    return writer.written


class Writer:
    """Writes one answer. If the structural tag leaves the number of tags with calls open, it writes at most two."""

    def __init__(self, tools: list[dict[str, Any]], rng: random.Random) -> None:
        self.written = Written()
        self._schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        self._rng = rng
        self._left = 2

    def write(self, form: dict[str, Any]) -> None:
        """Write a text for a format of the structural tag."""
        getattr(self, "_" + form["type"])(form)

    def _const_string(self, form: dict[str, Any]) -> None:
        self.written.text += form["value"]

    def _regex(self, form: dict[str, Any]) -> None:
        assert form["pattern"] == r"\d+"
        self.written.text += str(self._rng.randrange(1000))

    def _sequence(self, form: dict[str, Any]) -> None:
        for element in form["elements"]:
            self.write(element)

    def _or(self, form: dict[str, Any]) -> None:
        self.write(self._rng.choice(form["elements"]))

    def _optional(self, form: dict[str, Any]) -> None:
        if self._rng.random() < 0.6:
            self.write(form["content"])

    def _tag(self, form: dict[str, Any]) -> None:
        ends = [form["end"]] if isinstance(form["end"], str) else form["end"]
        self.written.text += form["begin"]
        if form["content"]["type"] == "any_text":
            self._text(is_reasoning=bool(THOUGHT & {form["begin"], *ends}))
        else:
            self.write(form["content"])
        self.written.text += self._rng.choice(ends)

    def _triggered_tags(self, form: dict[str, Any]) -> None:
        if not form["at_least_one"]:
            self._maybe_text()
        while self._left > 0:
            self._left -= 1
            self._tag(self._rng.choice(form["tags"]))
            if form["stop_after_first"]:
                return
            self._maybe_text()

    def _tags_with_separator(self, form: dict[str, Any]) -> None:
        count = self._rng.randint(int(form["at_least_one"]), 1 if form["stop_after_first"] else 2)
        for number in range(count):
            self.written.text += form["separator"] if number else ""
            self._tag(self._rng.choice(form["tags"]))

    def _json_schema(self, form: dict[str, Any]) -> None:
        name = form["json_schema"]["description"]
        schema = self._schemas[name]
        value = value_of(schema, self._rng)
        if form["style"] == "json":
            text = arguments = self._json(value)
        else:
            text, arguments = WRITERS[form["style"]](value, schema, self._rng), ""
        self.written.text += text
        self.written.values.append(value)
        self.written.answer.calls.append(Call(name, arguments, is_whole=True))

    def _json(self, value: Any) -> str:
        comma, colon = self._rng.choice([(", ", ": "), (",", ":"), (" ,\n", " : ")])
        text = json.dumps(value, ensure_ascii=False, separators=(comma, colon))
        return text.replace("漢", "\\u6f22") if self._rng.random() < 0.5 else text

    def _maybe_text(self) -> None:
        if self._rng.random() < 0.6:
            self._text(is_reasoning=False)

    def _text(self, *, is_reasoning: bool) -> None:
        text = self._rng.choice(PROSE)
        self.written.text += text
        if is_reasoning:
            self.written.answer.reasoning += text
        else:
            self.written.answer.content += text
