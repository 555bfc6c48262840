"""Free sentences with made-up values, and a schema for some of the values, in the form of weft's README."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

import words
from config import lines, load_module

prompts = load_module("weft.tiny.prompts")
Json = prompts.Json
Schema = prompts.Schema


@dataclass(frozen=True)
class Slot:
    """A kind of gap in a sentence: possible names of its field, its type, and the function that draws its value."""

    keys: tuple[str, ...]
    kind: str
    draw: Callable[[random.Random], Json]


@dataclass(frozen=True)
class Filled:
    """A filled gap: its slot, the possible names of its field, its type and its value."""

    slot: str
    keys: tuple[str, ...]
    kind: str
    value: Json


def _slot(keys: str, kind: str, draw: Callable[[random.Random], Json]) -> Slot:
    return Slot(tuple(keys.split()), kind, draw)


def _place(r: random.Random) -> str:
    return r.choice(words.LISTED) if r.random() < 0.15 else words.name(r)


def _age(r: random.Random) -> int:
    return r.randint(0, 120)


SLOTS: dict[str, Slot] = {
    "name": _slot("name name name name full_name person who", "string", words.name),
    "other": _slot("friend other_name second_person partner to_whom", "string", words.name),
    "first": _slot("first_name first given_name", "string", words.word),
    "last": _slot("last_name last surname family_name", "string", words.word),
    "age": _slot("age age age years age_in_years", "integer", _age),
    "city": _slot("city city town place location", "string", _place),
    "country": _slot("country country nation state", "string", _place),
    "job": _slot("job profession role title occupation", "string", words.phrase),
    "company": _slot("company employer firm organization", "string", words.phrase),
    "email": _slot("email mail email_address", "string", words.email),
    "phone": _slot("phone phone_number telephone", "string", words.digits),
    "date": _slot("date date day born birthday birth_date when", "string", words.date),
    "time": _slot("time hour at start", "string", words.time),
    "year": _slot("year since year_of_it", "integer", lambda r: r.randint(1000, 2199)),
    "count": _slot("count quantity number_of_items n amount", "integer", words.integer),
    "price": _slot("price cost total value amount_due", "number", words.number),
    "size": _slot("weight height length size distance score", "number", words.number),
    "digits": _slot("number digits account", "string", words.digits),
    "code2": _slot("code id", "string", words.code),
    "city2": _slot("city", "string", _place),
    "code": _slot("code id order_id reference number serial", "string", words.code),
    "item": _slot("item product thing article object", "string", words.phrase),
    "book": _slot("title book work film song", "string", words.phrase),
    "word": _slot("word value tag label text language color", "string", words.word),
}
TEMPLATES = lines("templates.txt")
GAP = re.compile(r"\{(\w+)(?:=([\w|]+))?\}")  # {slot} or {slot=names|of|its|field}
ALONE = "{name} is {age} years old."  # the sentence of the README


def _fill(r: random.Random, template: str, filled: list[Filled]) -> str:
    def fill(match: re.Match[str]) -> str:
        slot = SLOTS[match[1]]
        keys = tuple(match[2].split("|")) if match[2] else slot.keys
        filled.append(Filled(match[1], keys, slot.kind, slot.draw(r)))
        return str(filled[-1].value)

    return GAP.sub(fill, template)


def _slots(template: str) -> set[str]:
    return {match[1] for match in GAP.finditer(template)}


def tell(r: random.Random) -> tuple[str, list[Filled]]:
    """Make a text of one or two sentences. Returns it with its filled gaps."""
    filled: list[Filled] = []
    first = r.choice(TEMPLATES) if r.random() < 0.85 else ALONE
    text = _fill(r, first, filled)
    if r.random() < 0.3:
        second = r.choice(TEMPLATES)
        if not _slots(second) & _slots(first):
            text += r.choice((" ", " ", "; ", ". ")) + _fill(r, second, filled)
    if r.random() < 0.2:
        note = r.choice(words.vocabulary.DISTRACTORS)
        text = f"{text} {note}" if r.random() < 0.5 else f"{note} {text}"
    return text, filled


def _split(r: random.Random, told: list[Filled]) -> list[Filled]:
    """Sometimes split a name of two words into two fields."""
    for gap in told:
        if gap.slot == "name" and gap.value.count(" ") == 1 and r.random() < 0.12:
            parts = zip(("first", "last"), gap.value.split(" "), strict=True)
            return [Filled(s, SLOTS[s].keys, "string", part) for s, part in parts] + told
    return told


def ask(r: random.Random, told: list[Filled]) -> tuple[Schema, dict[str, Json]]:
    """Make a schema of one to four of the values, and its answer."""
    told = _split(r, told)
    wanted = r.sample(told, r.randint(1, min(4, len(told))))
    if r.random() < 0.6:
        wanted = [gap for gap in told if r.random() < 0.6 or gap in wanted][:4]
    properties: dict[str, Schema] = {}
    answer: dict[str, Json] = {}
    for gap in wanted:
        key = r.choice(gap.keys)
        if key not in properties:
            properties[key], answer[key] = {"type": gap.kind}, gap.value
    schema: Schema = {"type": "object", "properties": properties}
    if r.random() < 0.06:
        outer = r.choice(("person", "record", "result", "data"))
        schema, answer = {"type": "object", "properties": {outer: schema}}, {outer: answer}
    return schema, answer


def several(r: random.Random) -> tuple[str, Schema, dict[str, Json]]:
    """Make a text that lists values of one kind, and a schema for all of them."""
    draw, kind, keys = r.choice(
        ((words.name, "string", "names people guests"), (words.word, "string", "words tags items"),
         (words.integer, "integer", "numbers values"), (words.phrase, "string", "titles things products"))
    )  # fmt: skip
    values = [draw(r) for _ in range(r.randint(1, 4))]
    shown = [str(v) for v in values]
    joined = ", ".join(shown[:-1]) + " and " + shown[-1] if len(shown) > 1 else shown[0]
    key = r.choice(keys.split())
    text = r.choice(("{}.", "We have {}.", "{} were here.", "There are {}.", "The list: {}.")).replace(
        "{}", joined
    )
    schema = {"type": "object", "properties": {key: {"type": "array", "items": {"type": kind}}}}
    return text, schema, {key: values}


def sentence(r: random.Random) -> tuple[str, Schema, dict[str, Json]]:
    """Make a text, a schema, and the JSON that answers both."""
    if r.random() < 0.07:
        return several(r)
    text, told = tell(r)
    return text, *ask(r, told)
