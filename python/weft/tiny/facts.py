"""A fact of a synthetic record: a value, the names and schema it may have, and sentences that state it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from weft.tiny.prompts import Json, Schema
from weft.tiny.vocabulary import FIRST, LAST


@dataclass(frozen=True)
class Fact:
    """What a kind of record draws and `records` tells or asks for."""

    keys: tuple[str, ...]  # names that training uses
    new: tuple[str, ...]  # names that only the unseen split uses
    schema: Schema
    value: Json
    says: tuple[str, ...]  # sentences that state it; none: the text is silent, and the value is null
    group: str = ""  # an object it may be nested in


STRING: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
PERCENT: Schema = {"type": "integer", "minimum": 0, "maximum": 100}
COUNT: Schema = {"type": "integer", "minimum": 0}


def shown(value: Json) -> str:
    """How a sentence tells a value."""
    if isinstance(value, list):
        words = [str(v) for v in value]
        return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else words[0]
    return str(value)


def fact(keys: str, new: str, schema: Schema, value: Json, says: str, group: str = "") -> Fact:
    """`keys` and `new` are separated by spaces, `says` by bars; {} is the value."""
    sentences = tuple(s.replace("{}", shown(value)) for s in says.split("|")) if says else ()
    return Fact(tuple(keys.split()), tuple(new.split()), schema, value, sentences, group)


def flag(r: random.Random, keys: str, new: str, yes: str, no: str) -> Fact:
    """A boolean, with the sentences for either value."""
    value = r.random() < 0.5
    return fact(keys, new, BOOLEAN, value, yes if value else no)


def enum(r: random.Random, keys: str, new: str, values: str, says: str, group: str = "") -> Fact:
    """One of `values`, which are separated by spaces."""
    names = values.split()
    return fact(keys, new, {"type": "string", "enum": names}, r.choice(names), says, group)


def listing(r: random.Random, keys: str, new: str, words: list[str], most: int, says: str) -> Fact:
    """One to `most` of `words`."""
    schema: Schema = {"type": "array", "items": STRING, "minItems": 1}
    return fact(keys, new, schema, r.sample(words, r.randint(1, most)), says)


def object_schema(**properties: Schema) -> Schema:
    """An object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def table(r: random.Random, keys: str, new: str, words: list[str], names: str, unit: str, says: str) -> Fact:
    """One to three rows of a word and its count, whose properties are named by `names`."""
    what, count = names.split()
    rows = [{what: w, count: r.randint(1, 90)} for w in r.sample(words, r.choice((1, 2, 2, 3)))]
    told = shown([f"{row[count]} {unit}{row[what]}" for row in rows])
    schema: Schema = {"type": "array", "items": object_schema(**{what: STRING, count: COUNT}), "minItems": 1}
    return Fact(
        tuple(keys.split()), tuple(new.split()), schema, rows, tuple(says.replace("{}", told).split("|"))
    )


def two_words(r: random.Random, first: list[str], second: list[str]) -> str:
    """One of each list."""
    return f"{r.choice(first)} {r.choice(second)}"


def made_up(r: random.Random) -> str:
    """A word that is in no list, so that words must be copied piece by piece."""
    syllables = (r.choice("bcdfghjklmnprstvwz") + r.choice("aeiou") for _ in range(r.randint(1, 2)))
    return "".join(syllables) + r.choice("bdfgklmnprstxyz")


def full_name(r: random.Random) -> str:
    """A person's; now and then with a last name from no list."""
    if r.random() < 0.03:
        return f"{r.choice(FIRST)} {made_up(r).title()}"
    return two_words(r, FIRST, LAST)


def date(r: random.Random) -> str:
    """Year, month and day."""
    return f"{r.randint(2020, 2029)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"


def price(r: random.Random, top: int) -> float:
    """From 1 to `top`, in hundredths."""
    return r.randint(100, top * 100) / 100


def code(r: random.Random) -> str:
    """Two letters and a number."""
    return f"{r.choice('ABCDEFGHKLMPRSTX')}{r.choice('ABCDEFGHKLMPRSTX')}-{r.randint(100, 9999)}"
