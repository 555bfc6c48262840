"""Synthetic records: a short text, a JSON schema, and the JSON that answers both.

weft-tiny is trained on these, and tests and benchmarks prompt it with these. `schema_only` makes prompts
without a text. Only the standard library is used and nothing else of weft, so that training needs no built weft.

Three splits, disjoint by construction. The facts that a text states are hashed (CRC-32 of their sorted
JSON); a record whose hash is 0 modulo 16 is ``"heldout"``, every other one is ``"train"``. No
train record states the same facts as a held-out one, whatever the seeds. ``"unseen"`` has shapes that
training never shows: other key names, other nestings and three further kinds of record. Its hash is
not looked at.
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
    """One example: what the model reads (`prompt`) and what it ought to write (`answer`)."""

    text: str
    schema: Schema
    answer: dict[str, Json]
    prompt: str

    @property
    def completion(self) -> str:
        """The answer as the model is trained to write it."""
        return json.dumps(self.answer, ensure_ascii=False)


def is_heldout(facts: dict[str, Json]) -> bool:
    """Whether a record that states these facts is kept out of training."""
    return zlib.crc32(json.dumps(facts, sort_keys=True).encode()) % 16 == 0


def example(
    rng: random.Random, split: Split = "train", alter: Callable[[random.Random, Fact], Fact] | None = None
) -> Record:
    """One record of a split; the same `rng` state gives the same record. `alter` may change each of its facts."""
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
    """A record whose prompt is its schema alone: every JSON that the schema takes answers it.

    `text` is empty, and `answer` is one of the many that fit.
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
    """A name for each wanted fact.

    Where no other stated fact has such a schema, the name tells nothing and may be any. Others may be
    decorated. So names must be copied from the schema, not known by heart.
    """
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
    """The schema that asks for the wanted facts, and its answer."""
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
                continue  # the name is taken
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
