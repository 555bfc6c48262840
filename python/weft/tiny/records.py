"""Synthetic records: a short text, a JSON schema, and the JSON that is the answer.

weft-tiny is trained on these records, and tests and benchmarks use them as prompts. `schema_only` makes prompts without
a text. This package uses only the standard library, so that training does not need a built weft.

There are three splits. A hash of the facts that a record states (CRC-32 of their sorted JSON) selects the split: 0
modulo 16 is ``"heldout"``, everything else is ``"train"``. So no train record states the same facts as a held-out
record, for any seeds. The split ``"unseen"`` ignores the hash. It has key names, nestings and three kinds of records
that training never shows.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from weft.tiny.facts import Fact, made_up, object_schema
from weft.tiny.kinds import KINDS, NEW_KINDS
from weft.tiny.prompts import Json, Schema, render_prompt, render_schema, render_schema_prompt
from weft.tiny.vocabulary import (
    BAGS,
    DISTRACTORS,
    KEY_WORDS,
    NEW_PREFIXES,
    NEW_SUFFIXES,
    PREFIXES,
    SUFFIXES,
)

__all__ = [
    "Json",
    "Record",
    "Schema",
    "Split",
    "example",
    "is_heldout",
    "render_prompt",
    "render_schema",
    "render_schema_prompt",
    "schema_only",
]

Split = Literal["train", "heldout", "unseen"]


@dataclass(frozen=True)
class Record:
    """One example: the model's input (`prompt`), and the expected output (`answer`)."""

    text: str
    schema: Schema
    answer: dict[str, Json]
    prompt: str

    @property
    def completion(self) -> str:
        """The answer in the format that the model is trained to write."""
        return json.dumps(self.answer, ensure_ascii=False)


def is_heldout(facts: dict[str, Json]) -> bool:
    """Whether records that state these facts are held out of training."""
    return zlib.crc32(json.dumps(facts, sort_keys=True).encode()) % 16 == 0


def example(
    rng: random.Random, split: Split = "train", alter: Callable[[random.Random, Fact], Fact] | None = None
) -> Record:
    """Draw a record of a split. The same state of `rng` gives the same record. `alter` may change each fact."""
    while True:
        unseen = split == "unseen"
        new_kind = unseen and rng.random() < 0.1
        facts = rng.choice(NEW_KINDS if new_kind else KINDS)(rng)
        if alter is not None:
            facts = [alter(rng, fact) for fact in facts]
        said = rng.sample(facts, rng.randint(3, min(6, len(facts))))
        if unseen or is_heldout({f.keys[0]: f.value for f in said}) == (split == "heldout"):
            return _record(rng, facts, said, unseen)


def schema_only(rng: random.Random, split: Split = "train") -> Record:
    """Draw a record whose prompt holds only its schema. Any valid JSON answers it.

    `text` is empty, and `answer` is one of many valid answers.
    """
    record = example(rng, split)
    return replace(record, text="", prompt=render_schema_prompt(record.schema))


def _record(r: random.Random, facts: list[Fact], said: list[Fact], unseen: bool) -> Record:
    sentences = [r.choice(f.says) for f in said if f.says]
    for _ in range(r.choice((0, 0, 1, 1, 2))):
        sentences.insert(r.randint(0, len(sentences)), r.choice(DISTRACTORS))
    wanted = r.sample(said, r.randint(2, min(5, len(said))))
    if r.random() < 0.3:
        wanted.sort(key=facts.index)
    schema, answer = _shape(r, said, wanted, unseen)
    text = " ".join(sentences)
    return Record(text, schema, answer, render_prompt(text, schema))


def _any_key(r: random.Random) -> str:
    return made_up(r) if r.random() < 0.4 else "_".join(r.sample(KEY_WORDS, r.choice((1, 1, 2))))


def _keys(r: random.Random, said: list[Fact], wanted: list[Fact], unseen: bool) -> list[str]:
    """A key for each wanted fact.

    If no other stated fact has the same schema, the schema alone identifies the fact, and the key may be any word.
    Other keys may get a prefix or suffix. So the model must copy keys from the schema instead of memorizing them."""
    signatures = [render_schema(f.schema) for f in said]
    prefixes, suffixes = (NEW_PREFIXES, NEW_SUFFIXES) if unseen else (PREFIXES, SUFFIXES)
    decorated = r.random() < 0.25
    names: list[str] = []
    for fact in wanted:
        name = r.choice(fact.new if unseen and r.random() < 0.1 else fact.keys)
        if signatures.count(render_schema(fact.schema)) == 1 and r.random() < 0.12:
            name = _any_key(r)
        elif decorated and r.random() < 0.5:
            name = r.choice(prefixes) + name if r.random() < 0.5 else name + r.choice(suffixes)
        names.append(name)
    return names


def _shape(
    r: random.Random, said: list[Fact], wanted: list[Fact], unseen: bool
) -> tuple[Schema, dict[str, Json]]:
    """A schema that asks for the wanted facts, and the answer."""
    properties: dict[str, Schema] = {}
    groups: dict[str, Schema] = {}
    answer: dict[str, Json] = {}
    nested = r.random() < 0.6
    bag = (r.choice(BAGS) if r.random() < 0.7 else _any_key(r)) if r.random() < 0.15 else ""
    if unseen:
        nested, bag = r.random() < 0.3, r.choice(("", "", "data", "account"))
    for i, (fact, key) in enumerate(zip(wanted, _keys(r, said, wanted, unseen), strict=True)):
        group = fact.group if nested and fact.group else bag if i else ""
        if group:
            inner = groups[group] if group in groups else object_schema()
            if (group in properties and group not in groups) or key in inner["properties"]:
                continue  # the key is taken
            properties[group] = groups[group] = inner
            inner["properties"][key] = fact.schema
            inner["required"].append(key)
            answer.setdefault(group, {})[key] = fact.value
        elif key not in properties:
            properties[key] = fact.schema
            answer[key] = fact.value
    if r.random() < (0.25 if unseen else 0.08):
        outer = r.choice(("report", "menu")) if unseen else r.choice(BAGS)
        properties, answer = {outer: object_schema(**properties)}, {outer: answer}
    return object_schema(**properties), answer
