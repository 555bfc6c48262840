"""All that reads a text that a client sends: for `tests/unit/grammar/test_linear.py`.

A reader is everything that weft itself does with a text before a grammar library, or the engine, gets to see it; what
is wrong with the text is of no account.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any, get_args

from support.grammar.linear_shapes import RULES, SCHEMAS, TAGS, TEXTS, Shape, again
from weft import SamplingParams
from weft.client.model_text import ModelText
from weft.client.word_rules import WordRules
from weft.config import package_model_path
from weft.core import check_words
from weft.errors import WeftError
from weft.executor import ExternalDraftTokensConfig, Request
from weft.grammar import CompileLimits, Guide
from weft.grammar.guide import Kind
from weft.grammar.kinds.after import After
from weft.grammar.limits import check_costs, check_text
from weft.grammar.llguidance import backend as llguidance_backend
from weft.grammar.llguidance import gbnf, lark
from weft.grammar.notes import Notes
from weft.grammar.schema.rewritten import _rewritten
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.grammar.xgrammar import schema as xgrammar_schema
from weft.grammar.xgrammar import tags as xgrammar_tags
from weft.grammar.xgrammar import translate as xgrammar_translate
from weft.tokenizer.files import load_tokenizer
from weft.tokenizer.stop_words import StopSequences, StopTexts

LIMITS = CompileLimits(
    max_depth=1 << 30,
    max_choices=1 << 30,
    max_properties=1 << 30,
    max_repeat=1 << 60,
    max_source_bytes=1 << 30,
)
TOKENIZER = load_tokenizer(package_model_path())
VOCABULARY = Vocabulary.from_huggingface(TOKENIZER)
TEXT = ModelText(VOCABULARY.vocab_size, (0,), VOCABULARY, TOKENIZER, max_seq_len=1 << 20)
WORDS = WordRules(TEXT, max_words=1 << 20)


def read_guide(guide: Guide) -> None:
    """What weft does with a guide in front of both grammar libraries."""
    _rewritten.cache_clear()
    xgrammar_tags.read.cache_clear()
    hash(guide)
    check_text(guide, LIMITS)
    for step in (
        lambda: check_costs(guide, LIMITS),
        lambda: Notes.of(llguidance_backend.not_enforced(guide)),
        lambda: Notes.of(xgrammar_translate.not_enforced(guide)),
    ):
        with contextlib.suppress(WeftError):
            step()


def read_json_schema(text: str) -> None:
    guide = Guide.json_schema(text, strict=False)
    read_guide(guide)
    llguidance_backend.translated(guide)
    xgrammar_schema.opened_schema(json.loads(text))


def read_ebnf(text: str) -> None:
    read_guide(Guide.ebnf(text))
    gbnf.to_lark(text)


def read_lark(text: str) -> None:
    read_guide(Guide.lark(text))
    lark.with_numbers(text, {"<|a|>": 7})


def read_regex(text: str) -> None:
    read_guide(Guide.regex(text))


def read_tag(text: str) -> None:
    read_guide(Guide.structural_tag(text, strict=False))


def read_choices(text: str) -> None:
    choices = [text[i : i + 10] for i in range(0, len(text), 10)]
    for guide in (Guide.choice([text]), Guide.choice(choices)):
        read_guide(guide)
        llguidance_backend.translated(guide)
        for choice in json.loads(guide.source):
            xgrammar_translate._ebnf_literal(choice)


def read_tools(text: str) -> None:
    with contextlib.suppress(ValueError, RecursionError):  # the caller's own, who gives what was read
        read_function({"name": "f", "parameters": json.loads(text)})


def read_function(function: dict[str, Any]) -> None:
    Guide.tools([{"type": "function", "function": function}], style="llama", strict=False)


def read_after(text: str) -> None:
    guide = Guide.regex(text)
    for trigger in ("a", text[:300], 7):
        with contextlib.suppress(WeftError):
            guide = Guide.after(trigger, guide)
    check_text(guide, LIMITS)
    After.of(guide).check()


def read_words(text: str) -> None:
    """As one word, and as many."""
    for given in ([text], [text[i : i + 64] for i in range(0, len(text), 64)]):
        for step in (
            lambda: check_words("words", given),  # noqa: B023
            lambda: WORDS.stop_words("stop", given),  # noqa: B023
            lambda: WORDS.rules(SamplingParams(bad_words=given)),  # noqa: B023
        ):
            with contextlib.suppress(WeftError):
                step()
    StopTexts([text, *(text[i : i + 8] for i in range(0, len(text), 8))])


def read_tokens(text: str) -> None:
    """A prompt, drafts of the client's own, and sequences that end an answer, one or many, of a token for each byte."""
    tokens = [code % 256 for code in map(ord, text)]
    request = Request(tokens, 8, external_draft_tokens_config=ExternalDraftTokensConfig(tokens))
    Request.from_json(request.to_json())
    TEXT.prompt(request.input_token_ids)
    TEXT.expected(tokens)
    many = [tuple(tokens[i : i + 16]) for i in range(0, len(tokens), 16)]
    for given in ([tokens], many):
        StopSequences(given)
        with contextlib.suppress(WeftError):
            WORDS.rules(SamplingParams(bad_words=given))


def read_prompt(text: str) -> None:
    """What is done to a prompt before it is tokenized."""
    TEXT.check_text(text)


def made_by_the_program(text: str) -> None:
    """Guides of this kind hold objects of the program, and a client's text only as what those read."""


READERS: dict[str, tuple[Callable[[str], object], dict[str, Shape]]] = {
    "json_schema": (read_json_schema, TEXTS | SCHEMAS),
    "regex": (read_regex, TEXTS),
    "ebnf": (read_ebnf, TEXTS | RULES),
    "lark": (read_lark, TEXTS | RULES),
    "choice": (read_choices, TEXTS),
    "structural_tag": (read_tag, TEXTS | TAGS),
    "tools": (read_tools, SCHEMAS),
    "after": (read_after, TEXTS),
    **dict.fromkeys(
        ("grammar", "compiled", "matcher", "wasm", "recognizer", "plugin"), (made_by_the_program, {})
    ),
    "words": (read_words, TEXTS),
    "tokens": (read_tokens, {"one token": again("a"), "two tokens": again("aaaab")}),
    "prompt": (read_prompt, TEXTS),
}
"""For each kind of text, and each kind of guide, who reads it and in which shapes it comes."""

KINDS = get_args(Kind)
