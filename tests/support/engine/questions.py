"""Prompts with guides, and whether an answer is what the guide asks for, by validators that are not weft's."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from typing import Any

import jsonschema
import xgrammar as xgr

from support.engine.references import Checkpoint, compile_reference
from support.grammar.guides import GUIDES
from weft.tiny.records import example, schema_only

RECORDS, OTHERS = 50, 70
"""In one run: prompts of weft-tiny with the schemas that they ask for, and other guides."""


@dataclass(frozen=True)
class Question:
    """A prompt, and the guide of its answer: an entry of GUIDES."""

    prompt: str
    guide: tuple[str, Any]


def questions(seed: int) -> list[Question]:
    """A mixture, another one for each seed."""
    rng = random.Random(seed)
    records = [rng.choice((example, schema_only))(rng, "heldout") for _ in range(RECORDS)]
    own = [Question(record.prompt, ("json_schema", record.schema)) for record in records]
    others = [Question(rng.choice(records).prompt, guide) for guide in rng.sample(GUIDES, OTHERS)]
    return rng.sample(own + others, RECORDS + OTHERS)


def is_valid(text: str, guide: tuple[str, Any], tiny: Checkpoint) -> bool:
    """Whether a whole answer is what the guide asks for."""
    kind, argument = guide
    if kind == "regex":
        return re.fullmatch(argument, text, re.DOTALL) is not None  # a grammar's dot takes line ends, too
    if kind == "choice":
        return text in argument
    if kind == "ebnf":
        matcher = xgr.GrammarMatcher(compile_reference(tiny.compiler, guide))
        return bool(matcher.accept_string(text) and matcher.accept_token(tiny.tokenizer.eos_token_id))
    value = json.loads(text)
    if kind == "json":
        return isinstance(value, dict | list)
    return bool(jsonschema.Draft202012Validator(argument).is_valid(value))
