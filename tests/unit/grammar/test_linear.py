"""What weft does with a client's text takes a time that grows with the text's length and no faster, whatever its shape.

Thread CPU time, the least of several, of texts that double from 16 KB on: a reader that looks at a part of the text
again from each of its characters takes four times as long for each doubling.
"""

from __future__ import annotations

import contextlib
import gc
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest

from weft import SamplingParams, registry
from weft.client.model_text import ModelText
from weft.client.word_rules import WordRules
from weft.config import package_model_path
from weft.core import check_words
from weft.errors import WeftError
from weft.executor import ExternalDraftTokensConfig, GuideType, Request
from weft.grammar import CompileLimits, Guide
from weft.grammar.guide import GuideKind
from weft.grammar.kinds.after import After
from weft.grammar.limits import check_costs, check_text
from weft.grammar.llguidance import backend as llguidance_backend
from weft.grammar.llguidance import lark
from weft.grammar.notes import Notes
from weft.grammar.schema.rewrite import _rewritten
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.grammar.xgrammar import schema as xgrammar_schema
from weft.grammar.xgrammar import translate as xgrammar_translate
from weft.tokenizer.files import load_tokenizer
from weft.tokenizer.stop_words import StopSequences, StopTexts

# -- Texts that make careless readers slow: a shape makes a text of about so many bytes

Shape = Callable[[int], str]


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
    ),
    "structures of the older form": lambda n: json.dumps(
        {
            "triggers": [f"<{i}=" for i in range(n // 60)],
            "structures": [{"begin": f"<{i}=a>", "schema": "{}", "end": "<"} for i in range(n // 60)],
        }
    ),
}


# -- All that reads a text that a client sends: for `tests/unit/grammar/test_linear.py`

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
    xgrammar_translate.read_tag.cache_clear()
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
    lark.to_lark(text)


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
            lambda: WORDS.stop_words(given),  # noqa: B023
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

KINDS = get_args(GuideKind)


# -- tests

SMALL = 16 << 10
GROWTH = 3.0
"""Of a doubling: 2, and more where the longer text leaves a cache; looking back everywhere it is 4."""
FLOOR_S = 0.003
"""What is faster than this is taken for as fast: such times say nothing of how they grow."""
MOST_S = 1.5
"""CPU time for each 64 KB; the slowest, which rewrites and checks a schema for two libraries, took more than 0.5 s on a
processor without AVX-512 that others keep busy."""
CASES = [
    pytest.param(reader, shape, id=f"{kind}: {name}")
    for kind, (reader, shapes) in READERS.items()
    for name, shape in shapes.items()
]


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """A collection looks at all that the process holds, whosever turn it is."""
    gc.disable()
    yield
    gc.enable()


def cpu_s(reader: Callable[[str], object], text: str) -> float:
    start = time.thread_time()
    with contextlib.suppress(WeftError):
        reader(text)
    return time.thread_time() - start


def check(reader: Callable[[str], object], shape: Shape, doublings: int) -> None:
    """The least of up to four measurements must grow slowly enough."""
    small, large = shape(SMALL), shape(SMALL << doublings)
    least_small = least_large = float("inf")
    for _ in range(4):
        least_small = min(least_small, cpu_s(reader, small), cpu_s(reader, small))
        assert least_small <= MOST_S, f"{least_small:.4f} s for {len(small)} bytes"
        least_large = min(least_large, cpu_s(reader, large))
        growth = (least_large / max(least_small, FLOOR_S)) ** (1 / doublings)
        bound_s = MOST_S * len(large) / (64 << 10)
        if growth <= GROWTH and least_large <= bound_s:
            return
    assert growth <= GROWTH, f"{least_small:.4f} s, and {least_large:.4f} s for {2**doublings} times the text"
    assert least_large <= bound_s


@pytest.mark.parametrize(("reader", "shape"), CASES[::13])  # all of them up to the limit, below
def test_time_grows_with_the_length(reader: Callable[[str], object], shape: Shape) -> None:
    check(reader, shape, doublings=3)


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "shape"), CASES)
def test_time_grows_with_the_length_up_to_the_limit(reader: Callable[[str], object], shape: Shape) -> None:
    check(reader, shape, doublings=4)


def test_a_reader_that_looks_back_is_found() -> None:
    def looks_back(text: str) -> None:
        for at in range(0, len(text), 8):  # longer than FLOOR_S on any processor
            text[:at].upper()

    with pytest.raises(AssertionError, match="for 8 times the text"):
        check(looks_back, again("a"), doublings=3)


def test_every_kind_of_guide_has_a_reader() -> None:
    """A new one is added to the table of `linear.py`, with shapes that would make it slow."""
    kinds = {*KINDS, *registry.GUIDES}
    assert kinds <= set(READERS), "add those that are missing to READERS"
    of_types = {"JSON_SCHEMA": "json_schema", "REGEX": "regex", "EBNF_GRAMMAR": "ebnf", "LARK": "lark"}
    of_types |= {"STRUCTURAL_TAG": "structural_tag", "JSON": "json_schema", "HANDLE": "words"}
    assert set(GuideType.__members__) == set(of_types)
