"""Requests with every kind of guide, for tests that run them all in one batch: guides that no grammar library
compiles, guides of both libraries, guides after free text, programs, tags, tools, and answers that must be complete
at the limit."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonschema
import xgrammar as xgr

from support.engine.drafting_requests import GUIDED
from support.engine.references import Checkpoint, compile_reference, make_guide
from support.grammar.free_text import rows as rows_of_free_text
from support.grammar.guide_kinds import Brackets, Collapsing, built
from support.grammar.guides import GUIDES
from support.grammar.tool_guides import GUIDES as CALLS
from support.wasm.digits import digits, splicing
from support.wasm.guides import forced, spliced, tokens_of
from weft import LLM, Guide, Output, SamplingParams
from weft.config import package_model_path
from weft.grammar import Vocabulary
from weft.tiny.records import example, schema_only

# -- prompts with guides, and validators of the answers that are not weft's

RECORDS, OTHERS = 50, 70
"""The number of prompts of weft-tiny with their own schemas, and of prompts with other guides, in one run."""


@dataclass(frozen=True)
class Question:
    """A prompt, and the guide of its answer as an entry of GUIDES."""

    prompt: str
    guide: tuple[str, Any]


def questions(seed: int) -> list[Question]:
    """Draw a shuffled mixture of questions."""
    rng = random.Random(seed)
    records = [rng.choice((example, schema_only))(rng, "heldout") for _ in range(RECORDS)]
    own = [Question(record.prompt, ("json_schema", record.schema)) for record in records]
    others = [Question(rng.choice(records).prompt, guide) for guide in rng.sample(GUIDES, OTHERS)]
    return rng.sample(own + others, RECORDS + OTHERS)


def is_valid(text: str, guide: tuple[str, Any], tiny: Checkpoint) -> bool:
    """Whether a complete answer satisfies the guide, by a validator that is not weft's."""
    kind, argument = guide
    if kind == "regex":
        return re.fullmatch(argument, text, re.DOTALL) is not None  # a grammar's dot matches line breaks
    if kind == "choice":
        return text in argument
    if kind == "ebnf":
        matcher = xgr.GrammarMatcher(compile_reference(tiny.compiler, guide))
        return bool(matcher.accept_string(text) and matcher.accept_token(tiny.tokenizer.eos_token_id))
    value = json.loads(text)
    if kind == "json":
        return isinstance(value, dict | list)
    return bool(jsonschema.Draft202012Validator(argument).is_valid(value))


# -- a row of every kind

VOCABULARY, END = 1200, 1
MAX_TOKENS = 24
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "next": {"anyOf": [{"type": "object"}, {"type": "null"}]},
    },
    "required": ["name", "tags", "next"],
}


class Turns:
    """A matcher that allows ten tokens from three classes in rotation, then the end. It has no rollback."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def allowed(self) -> list[int]:
        if len(self.taken) >= 10:
            return [END]
        return list(range(40 + len(self.taken) % 3, VOCABULARY, 3))

    def accept(self, token: int) -> bool:
        if token not in self.allowed():
            return False
        self.taken.append(token)
        return True

    def fill(self, row: Any) -> None:
        words = row.view("uint32")
        for token in self.allowed():
            words[token // 32] |= 1 << (token % 32)

    def is_terminated(self) -> bool:
        return self.taken[-1:] == [END]


class Returning(Turns):
    """`Turns` with rollback."""

    def rollback(self, count: int) -> None:
        del self.taken[len(self.taken) - count :]


def replaced() -> Guide:
    """A program for nine digits that replaces each even digit above 0 by two zeros."""
    when = [token for digit in "2468" for token in tokens_of(digit)]
    return Guide.wasm(splicing(when, 1, tokens_of("0") * 2), "9", trusted=True)


@dataclass(frozen=True)
class Row:
    """A named request: its guide, the index of its prompt, which is also its seed, whether the answer must be
    complete at the limit (`closes`), and whether only XGrammar can compile the guide."""

    name: str
    make: Callable[[], Guide | None]
    number: int
    closes: bool = False
    only_xgrammar: bool = False

    def sampling(self, temperature: float) -> SamplingParams:
        return SamplingParams(
            max_tokens=MAX_TOKENS + 6 * self.closes,
            temperature=temperature,
            seed=self.number,
            on_length="close" if self.closes else "cut",
        )


@cache
def special() -> int:
    """A special token of weft-tiny that does not end a text."""
    vocabulary = Vocabulary.from_huggingface(package_model_path())
    return min(vocabulary.special_ids - {*vocabulary.end_ids})


def given(entry: tuple[str, Any]) -> Callable[[], Guide]:
    return lambda: make_guide(entry)


def constant(guide: Guide) -> Callable[[], Guide]:
    return lambda: guide


LIBRARIES: dict[str, Callable[[], Guide | None]] = {
    "none": lambda: None,
    **{entry[0]: given(entry) for entry in GUIDED if entry is not None},
}
LLGUIDANCE: dict[str, Callable[[], Guide]] = {  # guides that XGrammar does not support
    "Lark": lambda: Guide.lark('start: "<" WORD ("," WORD)* ">"\nWORD: /[a-z]{1,6}/'),
    "all of": lambda: Guide.json_schema({"allOf": [{"type": "integer", "minimum": 10}, {"maximum": 5000}]}),
    "regex with classes": lambda: Guide.regex(r"(?i)(north|south) \p{Lu}{2,5}"),
    "after, Lark": lambda: Guide.after("!", Guide.lark('start: "(" start ")" | /[0-9]+/'), max_free_tokens=9),
}
OWN: dict[str, Callable[[], Guide]] = {
    "Python, forward": lambda: Guide.matcher(Turns),
    "Python": lambda: Guide.matcher(Returning),
    "recogniser": lambda: Guide.recognizer(lambda: Brackets(12)),
    "recogniser, collapsing": lambda: Guide.recognizer(lambda: Collapsing(12)),
    "plug-in": lambda: Guide.plugin(built("matcher_plugin"), "9"),
    "plug-in, recogniser": lambda: Guide.plugin(built("recognizer_plugin"), "14"),
    "after, plug-in": lambda: Guide.after(":", Guide.plugin(built("matcher_plugin"), "5")),
    "after, Python": lambda: Guide.after("e", Guide.matcher(Turns), max_free_tokens=6),
}
FREE: dict[str, Callable[[], Guide]] = {
    f"after {number}": constant(guide)
    for number, (guide, _) in enumerate(rows_of_free_text(special()))
    if guide is not None
}
PROGRAMS: dict[str, Callable[[], Guide]] = {
    "wasm": lambda: digits(6),
    "wasm, forced": forced,
    "wasm, spliced": spliced,
    "wasm, replaced": replaced,
    "after, wasm": lambda: Guide.after("e", digits(4), max_free_tokens=8),
}
CLOSING: dict[str, Callable[[], Guide]] = {
    "closing, json": Guide.json,
    "closing, schema": lambda: Guide.json_schema(SCHEMA),
    "closing, regex": lambda: Guide.regex(r"[a-z ]+\.( [A-Z][a-z]+)+!"),
}
TAGS = {f"tools {number}": constant(guide) for number, guide in enumerate(CALLS)}

ROWS = [
    *(
        Row(name, make, number)
        for group in (LIBRARIES, LLGUIDANCE, OWN, FREE, PROGRAMS)
        for number, (name, make) in enumerate(group.items())
    ),
    *(Row(name, make, number, only_xgrammar=True) for number, (name, make) in enumerate(TAGS.items())),
    *(
        Row(name, make, number, closes=True, only_xgrammar=True)
        for number, (name, make) in enumerate(CLOSING.items())
    ),
]


def rows_of(backend: str) -> list[Row]:
    """The rows whose guides an engine with this backend supports."""
    return [row for row in ROWS if backend != "llguidance" or not row.only_xgrammar]


def answers(llm: LLM, prompts: list[str], rows: list[tuple[Row, float]]) -> list[Output]:
    """Answer the rows, each at its temperature. No row may fail."""
    outputs: list[Output] = llm.generate(
        [prompts[row.number] for row, _ in rows],
        guide=[row.make() for row, _ in rows],
        sampling=[row.sampling(temperature) for row, temperature in rows],
    )
    failed = [
        (row.name, output.error) for (row, _), output in zip(rows, outputs, strict=True) if output.error
    ]
    assert not failed, failed
    return outputs
