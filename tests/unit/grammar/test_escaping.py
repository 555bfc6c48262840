"""Texts of strangers in messages: whatever they hold, an error and a note are one line that a terminal may be given."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from support.grammar.grammars import small_vocabulary
from support.wasm.hostile import begin, step
from support.wasm.programs import escaped as in_wat
from weft import Guide, GuideError, GuideStateError, errors
from weft.errors import MAX_MESSAGE, WeftError, escaped
from weft.grammar.base import Opening
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.kinds.custom import wrap_matcher
from weft.guided.state import GuidedShape, GuidedState

EVIL = "\x1b[2J\r\nFAKE LOG \u202e\u2028\x85\x00\x7f end"
WORDS = b"\xff\x1b[2J\r\nFAKE LOG"


def check(text: str) -> None:
    assert text.isprintable(), repr(text)
    assert len(text) <= MAX_MESSAGE + 100


def test_what_is_escaped() -> None:
    assert escaped("a\tb\r\n\x1b[2J é 数 \u202e") == "a\\tb\\r\\n\\x1b[2J é 数 \\u202e"
    rng = random.Random(5)
    for _ in range(2000):
        text = "".join(chr(rng.choice((rng.randrange(256), rng.randrange(0x110000)))) for _ in range(20))
        assert escaped(text).isprintable()
        assert escaped(escaped(text)) == escaped(text)
        if text.isprintable():
            assert escaped(text) == text


@pytest.mark.parametrize(
    "kind",
    [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, WeftError)],
    ids=lambda kind: kind.__name__,
)
def test_every_error_is_one_line(kind: type[WeftError]) -> None:
    check(str(kind(EVIL * 1000)))


def wasm(text: str) -> Guide:
    return Guide.wasm(text.encode(), trusted=True)


def words(data: bytes) -> tuple[str, str]:
    """What writes words to the log, and the data segment that it needs."""
    body = f"""(i32.store (i32.const 70000) (i32.const 70008)) (i32.store (i32.const 70004) (i32.const {len(data)}))
      (drop (call $write (i32.const 1) (i32.const 70000) (i32.const 1) (i32.const 70100)))"""
    return body, f'(data (i32.const 70008) "{in_wat(data)}")'


def test_the_last_words_of_a_program() -> None:
    body, data = words(WORDS)
    with GuideCompiler(small_vocabulary()) as compiler:
        with pytest.raises(GuideError, match="last words") as at_start:
            compiler.compile(wasm(begin(f"{body} unreachable", data))).matcher(Opening([5]))
        matcher = compiler.compile(wasm(step(f"{body} unreachable", data))).matcher(Opening([5]))
    with pytest.raises(GuideStateError, match="last words") as at_a_step:
        matcher.accept(100)
    for raised in (at_start, at_a_step):
        check(str(raised.value))
        assert "�\\x1b[2J\\r\\nFAKE LOG" in str(raised.value)


class Speaks:
    """A matcher whose failure says something."""

    def __init__(self, text: str) -> None:
        self.text = text

    def accept(self, token: int) -> bool:
        raise RuntimeError(self.text)

    def fill(self, row: object) -> bool:
        return False

    def rollback(self, count: int) -> None:
        pass

    def is_terminated(self) -> bool:
        return False


@pytest.mark.parametrize("text", [EVIL, "\ud800 lone", "x" * 100_000])
def test_what_a_matcher_raises(text: str) -> None:
    matcher = wrap_matcher(Speaks(text))
    with pytest.raises(GuideStateError, match="RuntimeError") as raised:
        matcher.accept(5)
    check(str(raised.value))
    state = GuidedState(GuidedShape(1, 1, small_vocabulary().vocab_size, [0]))
    state.push([0], {0: wrap_matcher(Speaks(text))})
    state.fetch()
    state.verified_host[0, :2] = 0
    state.verified_host[0, 1] = 5
    state.commit()
    code, message = state.status(0)
    assert code == "matcher"
    assert message.isprintable()


def schema(**keywords: Any) -> Callable[[], Guide]:
    return lambda: Guide.json_schema(json.dumps(keywords))


GUIDES: dict[str, Callable[[], Guide]] = {
    "a key's schema": schema(properties={EVIL: 5}),
    "a keyword's value": schema(type=EVIL),
    "a reference": schema(**{"$ref": f"#/$defs/{EVIL}"}),
    "a pattern": schema(type="string", pattern=f"[{EVIL}"),
    "what is not enforced": schema(properties={EVIL: {"type": "array", "uniqueItems": True}}),
    "a regex": lambda: Guide.regex(f"({EVIL}"),
    "a rule": lambda: Guide.ebnf(f'root ::= "a" {EVIL}'),
    "a rule that is not there": lambda: Guide.ebnf("root ::= missing\x1b[2J"),
    "Lark": lambda: Guide.lark(f"start: {EVIL}"),
    "a Lark token": lambda: Guide.lark('start: <\x1b[2J> "a'),
    "JSON": lambda: Guide.json_schema(EVIL),
    "a tag": lambda: Guide.structural_tag(EVIL),
    "a part of a tag": lambda: Guide.structural_tag(
        json.dumps({"type": "structural_tag", "format": {"type": EVIL}})
    ),
    "a trigger": lambda: Guide.after(EVIL * 40, Guide.regex("a")),
    "a module": lambda: Guide.wasm(b"(module " + EVIL.encode() + b")", trusted=True),
    "a file": lambda: Guide.wasm(f"{EVIL}.wasm"),
    "an import": lambda: wasm('(module (import "env" "\\1b[2J\\0d\\0a" (func)))'),
}


@pytest.mark.parametrize("name", GUIDES)
@pytest.mark.parametrize("backend", ["xgrammar", "llguidance", "auto"])
def test_what_is_wrong_with_a_guide(backend: Any, name: str) -> None:
    with GuideCompiler(small_vocabulary(), backend=backend) as compiler, pytest.raises(WeftError) as raised:
        compiler.compile(GUIDES[name]())
    check(str(raised.value))


def test_notes() -> None:
    guide = Guide.json_schema(
        json.dumps({"properties": {EVIL: {"type": "array", "uniqueItems": True}}}), strict=False
    )
    with GuideCompiler(small_vocabulary()) as compiler:
        notes = compiler.compile(guide).notes
    assert notes
    for note in notes:
        check(note)


@pytest.mark.slow
def test_the_command_says_it_in_one_line() -> None:
    command = [
        sys.executable,
        "-m",
        "weft.cli",
        "generate",
        "--device",
        "cpu",
        "x",
        "--regex",
        "(\x1b[2J\nFAKE LOG",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("weft: ") and done.stderr.endswith("\n")
    check(done.stderr[:-1])
