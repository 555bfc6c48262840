"""The prompts: records held out of weft-tiny's training, as token ids, each with the JSON schema of its answer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from weft import load_tokenizer
from weft.tiny.records import Record, example

from .checkpoints import TINY, Checkpoint
from .protocol import Prompt

SEED = 4242
POOL = 64


def pool(checkpoint: Checkpoint) -> list[Prompt]:
    """Return the same `POOL` prompts in every call. The answers to SmolLM2's prompts contain no lists, because
    SmolLM2 would extend them up to the limit."""
    tokenizer = load_tokenizer(checkpoint.directory)
    if checkpoint.name == TINY:
        return [Prompt(tokenizer.encode(record.prompt), record.schema) for record in islice(_records(), POOL)]
    records = list(islice((record for record in _records() if not has_list(record.schema)), POOL))
    texts = [
        tokenizer.apply_chat_template(_messages(record), tokenize=False, add_generation_prompt=True)
        for record in records
    ]
    return [
        Prompt(tokenizer.encode(text, add_special_tokens=False), record.schema)
        for text, record in zip(texts, records, strict=True)
    ]


def of_round(prompts: list[Prompt], number: int, count: int, guided: bool) -> list[Prompt]:
    """Return the `count` prompts of a round, with or without schemas. Each round continues where the last one
    stopped."""
    taken = [prompts[(number * count + i) % len(prompts)] for i in range(count)]
    return taken if guided else [replace(prompt, schema=None) for prompt in taken]


def has_list(schema: dict[str, Any]) -> bool:
    """Whether an answer to a schema contains a list."""
    return schema.get("type") == "array" or any(map(has_list, schema.get("properties", {}).values()))


def _records() -> Iterator[Record]:
    rng = random.Random(SEED)
    while True:
        yield example(rng, "heldout")


def _messages(record: Record) -> list[dict[str, str]]:
    return [{"role": "user", "content": "Answer with the JSON alone.\n" + record.prompt.strip()}]
