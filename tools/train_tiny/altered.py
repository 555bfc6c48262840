"""Records of the kinds of `weft.tiny.records`, with made-up values, which the model can only copy."""

from __future__ import annotations

import random
from dataclasses import replace

import words
from config import load_module

facts = load_module("weft.tiny.facts")
Fact = facts.Fact


def _value(r: random.Random) -> str:
    return r.choice(
        (words.name, words.name, words.name, words.phrase, words.word, words.date, words.code, words.digits)
    )(r)


def alter(r: random.Random, fact: Fact) -> Fact:
    """Mostly replace the value of a fact by a made-up one, in its sentences and in the answer. A value that the schema
    restricts is kept."""
    if r.random() < 0.25 or not fact.says:
        return fact
    if fact.schema == facts.STRING:
        return _told(fact, fact.value, _value(r))
    if fact.schema == facts.COUNT and isinstance(fact.value, int):
        return _told(fact, fact.value, abs(words.integer(r)))
    if fact.schema == facts.NUMBER:
        return _told(fact, fact.value, words.number(r))
    if isinstance(fact.value, list) and isinstance(fact.value[0], str):
        return _listed(r, fact)
    if "enum" in fact.schema:
        return _enumerated(r, fact)
    return fact


def _told(fact: Fact, old: object, new: object) -> Fact:
    return replace(fact, value=new, says=tuple(s.replace(str(old), str(new)) for s in fact.says))


def _listed(r: random.Random, fact: Fact) -> Fact:
    draw = r.choice((words.name, words.word, words.phrase))
    values = [draw(r) for _ in fact.value]
    old, new = (facts.shown(v) for v in (fact.value, values))
    return replace(fact, value=values, says=tuple(s.replace(old, new) for s in fact.says))


def _enumerated(r: random.Random, fact: Fact) -> Fact:
    values = [words.word(r) for _ in range(r.randint(2, 4))]
    value = r.choice(values)
    return replace(_told(fact, fact.value, value), schema={"type": "string", "enum": values})
