"""Texts that make careless readers slow, and what of weft reads each kind of text that a client sends: for
`tests/unit/grammar/test_linear.py`.

A shape makes a text of about so many bytes. A reader is everything that weft itself does with a text before a grammar
library, or the engine, gets to see it; what is wrong with the text is of no account.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any, get_args

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
from weft.stop_words import StopSequences, StopTexts
from weft.text import load_tokenizer

Shape = Callable[[int], str]
LIMITS = CompileLimits(
    max_depth=1 << 30,
    max_choices=1 << 30,
    max_properties=1 << 30,
    max_repeat=1 << 60,
    max_source_bytes=1 << 30,
)


def again(piece: str, begin: str = "", end: str = "") -> Shape:
    return lambda n: begin + piece * ((n - len(begin) - len(end)) // len(piece)) + end


def numbered(piece: str, begin: str = "", end: str = "") -> Shape:
    """`piece` again and again, with {i} for the number and {j} for the next."""
    size = len(piece.format(i=10_000, j=10_000))
    return lambda n: begin + "".join(piece.format(i=i, j=i + 1) for i in range(n // size)) + end


PIECES = (
    "\n",
    "\r\n",
    " ",
    "\t",
    "a",
    "é",
    "a[\n",
    "[",
    "]",
    "(",
    ")",
    "()",
    "{",
    "}",
    "{ ",
    "{1",
    "{1,",
    "a{1,9}",
    "\\",
)
PIECES += (
    '"',
    '""',
    '\\"',
    "/",
    "//",
    "/\\",
    "#",
    "# \n",
    "<",
    "<a",
    "<a>",
    "=",
    "stop ",
    "stop#\n",
    "|",
    "a|",
    "::=",
    "-",
)
PIECES += (
    "a-",
    "[a-",
    "[^",
    "*",
    "a*",
    "?",
    "(?",
    "(?=",
    "(?:",
    "a ::= ",
    "%json {",
    "$",
    "~",
    "~1",
    "\x00",
    "\u2028",
    "0",
)
TEXTS: dict[str, Shape] = {f"{piece!r} again": again(piece) for piece in PIECES}
TEXTS |= {
    f"{piece!r} behind {begin!r}": again(piece, begin)
    for begin in '"/[{(<\\'
    for piece in ('\\"', " ", "a", "9")
}
TEXTS |= {
    "a repeat of repeats": again("{999999999}", "a"),
    "an open comment": again("a", "#"),
    "groups": lambda n: "(" * (n // 2) + ")" * (n // 2),
}

RULES: dict[str, Shape] = {
    "a chain of GBNF": numbered("r{i} ::= r{j}\n", "root ::= r0\n"),
    "a star of GBNF": numbered('r{i} ::= "a"\n', "root ::= r0\n"),
    "GBNF of one rule": numbered(' | "a{i}"', 'root ::= "a"'),
    "a class of GBNF": again("a-b\\-", "root ::= [", "]"),
    "a literal of GBNF": again("\\n", 'root ::= "', '"'),
    "bounds of GBNF": again(" ", 'root ::= "a"{1,', "}"),
    "a chain of Lark": numbered("r{i}: r{j}\n", "start: r0\n"),
    "special tokens": again("<|a|> ", "start: "),
    "options": numbered('r{i}[capture]: "stop = 3"\n', "start: r0\n"),
}


def schema(made: Callable[[int], Any], size: int) -> Shape:
    """`made(count)` as JSON; each of `count` parts has about `size` bytes."""
    return lambda n: json.dumps(made(n // size))


LONG = "k" * 4000
SCHEMAS: dict[str, Shape] = {
    "a pattern of brackets": again("[", '{"pattern": "', '"}'),
    "a pattern of negated brackets": again("[^", '{"pattern": "', '"}'),
    "a pattern of classes": again("[\\\\S-a]", '{"pattern": "', '"}'),
    "properties": schema(lambda c: {"properties": {f"p{i}": {"type": "string"} for i in range(c)}}, 30),
    "properties in a row": schema(
        lambda c: {
            "type": "object",
            "properties": {f"p{i}": True for i in range(c)},
            "required": [f"p{i}" for i in range(c)],
        },
        24,
    ),
    "a long key": schema(lambda c: {"properties": {LONG: {"anyOf": [{"not": {}}] * c}}}, 12),
    "long keys": schema(
        lambda c: {"properties": {f"{LONG}{i}": {"not": {"enum": [i]}} for i in range(c)}}, 4040
    ),
    "one reference again": schema(
        lambda c: {"$defs": {"a": {"type": "integer"}}, "anyOf": [{"$ref": "#/$defs/a"}] * c}, 24
    ),
    "references to all": schema(
        lambda c: {
            "$defs": {f"d{i}": {"type": "integer"} for i in range(c)},
            "anyOf": [{"$ref": f"#/$defs/d{i}"} for i in range(c)],
        },
        60,
    ),
    "a chain of references": schema(
        lambda c: {
            "$defs": {f"d{i}": {"$ref": f"#/$defs/d{(i + 1) % c}"} for i in range(c)},
            "$ref": "#/$defs/d0",
        },
        34,
    ),
    "a long reference": schema(lambda c: {"$ref": "#/" + "a/" * c}, 2),
    "patterns": schema(
        lambda c: {"anyOf": [{"type": "string", "pattern": f"^a{i}{{1,9}}(b|c)*$"} for i in range(c)]}, 50
    ),
    "pattern properties": schema(
        lambda c: {"patternProperties": {f"^a{i}$": {"type": "string"} for i in range(c)}}, 30
    ),
    "an enumeration": schema(lambda c: {"enum": [f"v{i}" for i in range(c)]}, 10),
    "enumerations": schema(lambda c: {"anyOf": [{"enum": [i, f"{i}"]} for i in range(c)]}, 30),
    "constants that exclude each other": schema(lambda c: {"oneOf": [{"const": i} for i in range(c)]}, 18),
    "branches that do not": schema(
        lambda c: {"oneOf": [{"type": "string", "minLength": i} for i in range(c)]}, 40
    ),
    "all of many": schema(lambda c: {"allOf": [{"minimum": i} for i in range(c)]}, 20),
    "all of many objects": schema(
        lambda c: {"allOf": [{"properties": {f"p{i}": {"type": "null"}}} for i in range(c)]}, 40
    ),
    "not": schema(lambda c: {"anyOf": [{"not": {"type": "string"}}] * c}, 28),
    "conditions": schema(
        lambda c: {
            "anyOf": [
                {"if": {"const": i}, "then": {"type": "integer"}, "else": {"type": "string"}}
                for i in range(c)
            ]
        },
        75,
    ),
    "unknown keywords": schema(lambda c: {f"x-{i}": i for i in range(c)}, 16),
    "a deep array": again("[", '{"enum": ', ""),
    "a deep schema": lambda n: '{"not":' * (n // 8) + "{}" + "}" * (n // 8),
    "strings of quotes": again('\\"', '{"const":"', '"}'),
    "digits": again("9", '{"const":', "}"),
    "numbers": again("9,", '{"enum":[', "9]}"),
    "escapes": again("\\u0000", '{"const":"', '"}'),
}


def tag(made: Callable[[int], str]) -> Shape:
    """A structural tag around a text of JSON."""
    return lambda n: '{"type":"structural_tag","format":' + made(n) + "}"


TAGS: dict[str, Shape] = {
    f"a tag around {name}": tag(
        lambda n, shape=shape: '{"type":"json_schema","json_schema":' + shape(n) + "}"
    )  # type: ignore[misc]
    for name, shape in SCHEMAS.items()
} | {
    "tags": tag(
        lambda n: json.dumps(
            {
                "type": "triggered_tags",
                "triggers": ["<"],
                "tags": [
                    {"type": "tag", "begin": f"<a{i}>", "content": {"type": "any_text"}, "end": "<"}
                    for i in range(n // 90)
                ],
            }
        )
    )
}

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
