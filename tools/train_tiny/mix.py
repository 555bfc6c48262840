"""The target's training mix: records, free sentences and other text by their shares, in several forms of prompts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from altered import alter
from config import load_module, load_records
from others import other
from sentences import Schema, sentence
from words import kept_out

records, prompts = load_records(), load_module("weft.tiny.prompts")
PLAIN, ALTERED, SENTENCES, OTHERS, BARE = "plain", "altered", "sentences", "others", "bare"
SHARES = {PLAIN: 0.26, ALTERED: 0.24, SENTENCES: 0.36, OTHERS: 0.08, BARE: 0.06}


@dataclass(frozen=True)
class Example:
    """A prompt and its answer."""

    prompt: str
    answer: str


def _written(r: random.Random, text: str, schema: Schema, answer: str) -> Example:
    """Write a prompt: mostly in the form of `render_prompt`, else as a user may type it."""
    signature = prompts.render_schema(schema)
    x = r.random()
    if x < 0.82:
        prompt = prompts.render_prompt(text, schema)
    elif x < 0.86:
        prompt = f"Text: {text}\nSchema: {signature}\nJSON:"
    elif x < 0.88:
        prompt = f"Text: {text}\nSchema: {signature}" + r.choice(("", "\n"))
    elif x < 0.91:
        prompt = f"Text: {text} Schema: {signature} JSON:" + r.choice(("", " "))
    elif x < 0.93:
        prompt = f"{text}\nSchema: {signature}\nJSON: "
    elif x < 0.95:
        prompt = f"Schema: {signature}\nText: {text}\nJSON: "
    else:
        prompt = _before(r) + prompts.render_prompt(text, schema)
    return Example(prompt, answer)


def _before(r: random.Random) -> str:
    """Return a prefix for a prompt: another text and schema, with or without an answer, or a line of small talk. The
    answer must be about the last text only."""
    if r.random() < 0.4:
        return other(r).rstrip("\n ") + "\n"
    text, schema, answer = sentence(r)
    done = json.dumps(answer, ensure_ascii=False) if r.random() < 0.6 else ""
    return f"{prompts.render_prompt(text, schema)}{done}".rstrip(" ") + "\n"


def _plain(r: random.Random) -> Example:
    record = records.example(r)
    return Example(record.prompt, record.completion)


def _altered(r: random.Random) -> Example:
    record = records.example(r, alter=alter)
    return _written(r, record.text, record.schema, record.completion)


def _sentence(r: random.Random) -> Example:
    text, schema, answer = sentence(r)
    return _written(r, text, schema, json.dumps(answer, ensure_ascii=False))


def _other(r: random.Random) -> Example:
    return Example(other(r), prompts.ABOUT)


def _bare(r: random.Random) -> Example:
    """Make a prompt of a text without a schema, which ends at the first quote of JSON that a guide began."""
    text, _, answer = sentence(r)
    told = f"{text}\n" if r.random() < 0.5 else f"Text: {text}\nJSON: " if r.random() < 0.5 else text
    return Example(told + '{"', json.dumps(answer, ensure_ascii=False).removeprefix('{"'))


MAKERS: dict[str, Callable[[random.Random], Example]] = {
    PLAIN: _plain, ALTERED: _altered, SENTENCES: _sentence, OTHERS: _other, BARE: _bare,
}  # fmt: skip


def made(r: random.Random, share: dict[str, float] = SHARES) -> Example:
    """Make an example of the mix. Names that names.py measures do not occur."""
    while True:
        example = MAKERS[r.choices(list(share), list(share.values()))[0]](r)
        folded = example.prompt.casefold()
        if not any(name in folded for name in kept_out()[0]):
            return example
