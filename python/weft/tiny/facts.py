"""Facts of synthetic records. A fact is a value with its possible names, its schema, and sentences that state it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from weft.tiny.prompts import Json, Schema
from weft.tiny.vocabulary import FIRST, LAST


@dataclass(frozen=True)
class Fact:
    """One fact of a record. `kinds` draws facts; `records` states them in texts and asks for them in schemas."""

    keys: tuple[str, ...]  # names that training uses
    new: tuple[str, ...]  # names that only the unseen split uses
    schema: Schema
    value: Json
    says: tuple[
        str, ...
    ]  # sentences that state it; empty for a fact that no text mentions, whose value is null
    group: str = ""  # an object in which it may be nested


STRING: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
PERCENT: Schema = {"type": "integer", "minimum": 0, "maximum": 100}
COUNT: Schema = {"type": "integer", "minimum": 0}


def shown(value: Json) -> str:
    """Format a value as sentences show it."""
    if isinstance(value, list):
        words = [str(v) for v in value]
        return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else words[0]
    return str(value)


def fact(keys: str, new: str, schema: Schema, value: Json, says: str, group: str = "") -> Fact:
    """Make a fact. Names in `keys` and `new` are separated by spaces, sentences in `says` by bars; {} stands for the
    value."""
    sentences = tuple(s.replace("{}", shown(value)) for s in says.split("|")) if says else ()
    return Fact(tuple(keys.split()), tuple(new.split()), schema, value, sentences, group)


def flag(r: random.Random, keys: str, new: str, yes: str, no: str) -> Fact:
    """A boolean fact, with sentences for true and for false."""
    value = r.random() < 0.5
    return fact(keys, new, BOOLEAN, value, yes if value else no)


def enum(r: random.Random, keys: str, new: str, values: str, says: str, group: str = "") -> Fact:
    """A fact whose value is one of `values`, which are separated by spaces."""
    names = values.split()
    return fact(keys, new, {"type": "string", "enum": names}, r.choice(names), says, group)


def listing(r: random.Random, keys: str, new: str, words: list[str], most: int, says: str) -> Fact:
    """A fact whose value is a list of one to `most` of the `words`."""
    schema: Schema = {"type": "array", "items": STRING, "minItems": 1}
    return fact(keys, new, schema, r.sample(words, r.randint(1, most)), says)


def object_schema(**properties: Schema) -> Schema:
    """The schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def table(r: random.Random, keys: str, new: str, words: list[str], names: str, unit: str, says: str) -> Fact:
    """A fact whose value is a list of one to three objects. Each object has a word and its count. `names` gives the
    names of these two properties."""
    what, count = names.split()
    rows = [{what: w, count: r.randint(1, 90)} for w in r.sample(words, r.choice((1, 2, 2, 3)))]
    told = shown([f"{row[count]} {unit}{row[what]}" for row in rows])
    schema: Schema = {"type": "array", "items": object_schema(**{what: STRING, count: COUNT}), "minItems": 1}
    return Fact(
        tuple(keys.split()), tuple(new.split()), schema, rows, tuple(says.replace("{}", told).split("|"))
    )


def two_words(r: random.Random, first: list[str], second: list[str]) -> str:
    """A random word from each list, joined by a space."""
    return f"{r.choice(first)} {r.choice(second)}"


def made_up(r: random.Random) -> str:
    """A made-up word, so that the model must learn to copy words token by token."""
    syllables = (r.choice("bcdfghjklmnprstvwz") + r.choice("aeiou") for _ in range(r.randint(1, 2)))
    return "".join(syllables) + r.choice("bdfgklmnprstxyz")


def full_name(r: random.Random) -> str:
    """A person's full name. A few have a made-up last name."""
    if r.random() < 0.03:
        return f"{r.choice(FIRST)} {made_up(r).title()}"
    return two_words(r, FIRST, LAST)


def date(r: random.Random) -> str:
    """A date as year-month-day."""
    return f"{r.randint(2020, 2029)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"


def price(r: random.Random, top: int) -> float:
    """A price from 1 to `top`, with two decimals."""
    return r.randint(100, top * 100) / 100


def code(r: random.Random) -> str:
    """A code of two letters and a number."""
    return f"{r.choice('ABCDEFGHKLMPRSTX')}{r.choice('ABCDEFGHKLMPRSTX')}-{r.randint(100, 9999)}"
