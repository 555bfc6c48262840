"""The prompts: records that weft-tiny was not trained on, each with the JSON schema of its answer, as token ids."""

from __future__ import annotations

import random
from dataclasses import replace

from weft import load_tokenizer
from weft.tiny.records import Record, example

from .checkpoints import TINY, Checkpoint
from .protocol import Prompt

SEED = 4242
POOL = 64


def pool(checkpoint: Checkpoint) -> list[Prompt]:
    """The same `POOL` prompts at every call."""
    rng = random.Random(SEED)
    records = [example(rng, "heldout") for _ in range(POOL)]
    tokenizer = load_tokenizer(checkpoint.directory)
    if checkpoint.name == TINY:
        return [Prompt(tokenizer.encode(record.prompt), record.schema) for record in records]
    texts = [
        tokenizer.apply_chat_template(_messages(record), tokenize=False, add_generation_prompt=True)
        for record in records
    ]
    return [
        Prompt(tokenizer.encode(text, add_special_tokens=False), record.schema)
        for text, record in zip(texts, records, strict=True)
    ]


def of_round(prompts: list[Prompt], number: int, count: int, guided: bool) -> list[Prompt]:
    """The `count` prompts of a round, with their schemas or without: each round goes on where the one before ended."""
    taken = [prompts[(number * count + i) % len(prompts)] for i in range(count)]
    return taken if guided else [replace(prompt, schema=None) for prompt in taken]


def _messages(record: Record) -> list[dict[str, str]]:
    return [{"role": "user", "content": "Answer with the JSON alone.\n" + record.prompt.strip()}]
