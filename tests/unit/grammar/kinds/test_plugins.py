"""Plug-ins and recognisers: what they make, and what is said of those that are wrong."""

from __future__ import annotations

import gc
import subprocess
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from support.grammar.grammars import END, PIECES, allowed, ids, new_row, small_vocabulary
from support.grammar.guide_kinds import Brackets, Collapsing, built
from weft import _core
from weft.errors import GuideError, GuideStateError
from weft.grammar import Guide, GuideCompiler, Matcher
from weft.grammar.kinds.custom import token_trie

PIECE = {piece: 259 + i for i, piece in enumerate(PIECES)}


@pytest.fixture(scope="module")
def compiler() -> Iterator[GuideCompiler]:
    with GuideCompiler(small_vocabulary()) as made:
        yield made


def mask(matcher: Matcher) -> list[int]:
    row = new_row()
    row[:] = -1
    matcher.fill(row)
    return allowed(row)


def luhn(digits: str) -> bool:
    doubled = [int(d) * (1 + i % 2) for i, d in enumerate(reversed(digits))]
    return sum(d - 9 if d > 9 else d for d in doubled) % 10 == 0


def test_the_headers_come_with_the_package() -> None:
    headers = weft.include_dir() / "weft"
    assert {path.name for path in headers.iterdir()} == {"matcher.h", "plugin.h", "recognizer.h"}
    for header in headers.iterdir():
        for language in ("c", "c++"):
            command = ["cc", "-Wall", "-Wextra", "-Werror", "-x", language, "-fsyntax-only"]
            command += ["-I", str(weft.include_dir()), str(header)]
            subprocess.run(command, check=True)


def test_a_matcher_of_a_plug_in(compiler: GuideCompiler) -> None:
    matcher = compiler.compile(Guide.plugin(built("matcher_plugin"), "3")).matcher()
    taken = [f"{n:03}" for n in range(1000) if matcher.validate([*ids(f"{n:03}"), END]) == 4]
    assert taken == [f"{n:03}" for n in range(1000) if luhn(f"{n:03}")]
    assert PIECE[b"12"] in mask(matcher)
    assert matcher.accept(PIECE[b"12"])
    assert mask(matcher) == ids("5")


def test_a_recogniser_of_a_plug_in_is_the_one_in_python(compiler: GuideCompiler) -> None:
    native = compiler.compile(Guide.plugin(built("recognizer_plugin"), "8")).matcher()
    python = compiler.compile(Guide.recognizer(lambda: Brackets(8))).matcher()
    collapsing = compiler.compile(Guide.recognizer(lambda: Collapsing(8))).matcher()
    before = Collapsing.finished
    for token in [*ids("("), PIECE[b"[["], *ids("]"), *ids("]"), *ids("{}"), *ids(")")]:
        assert mask(native) == mask(python) == mask(collapsing)
        assert all(matcher.accept(token) for matcher in (native, python, collapsing))
    assert mask(native) == mask(python) == mask(collapsing) == [END]
    assert Collapsing.finished - before == 8
    for matcher in (native, python, collapsing):
        matcher.rollback(4)
    assert mask(native) == mask(python) == mask(collapsing)


def test_what_must_follow_is_forced(compiler: GuideCompiler) -> None:
    for guide in (Guide.plugin(built("recognizer_plugin"), "6"), Guide.recognizer(lambda: Collapsing(6))):
        matcher = compiler.compile(guide).matcher()
        assert matcher.forced(4) == []
        for token in [PIECE[b"[["], *ids("(")]:
            assert matcher.accept(token)
        assert matcher.forced(4) == [*ids(")"), PIECE[b"]]"]]
        assert matcher.forced(1) == ids(")")


def test_a_search_for_what_is_forced_that_fails_changes_nothing(compiler: GuideCompiler) -> None:
    class Failing(Brackets):
        fails = True

        def byte_allowed(self, byte: int) -> bool:
            if self.fails and len(self.stack) == 5:
                raise ValueError("not so deep")
            return super().byte_allowed(byte)

    matcher = compiler.compile(Guide.recognizer(lambda: Failing(6))).matcher()
    for token in [PIECE[b"[["], *ids("(")]:
        assert matcher.accept(token)
    with pytest.raises(GuideStateError, match="not so deep"):
        matcher.forced(4)
    Failing.fails = False
    assert matcher.forced(4) == [*ids(")"), PIECE[b"]]"]]


def test_the_tree_has_every_token() -> None:
    """A recogniser that allows all bytes allows all tokens that have some, also two with the same."""

    class Anything(Brackets):
        def byte_allowed(self, byte: int) -> bool:
            return True

        def push_byte(self, byte: int) -> None:
            self.stack.append(("", len(self.stack)))

    vocabulary = weft_vocabulary()
    with GuideCompiler(vocabulary) as compiler:
        matcher = compiler.compile(Guide.recognizer(Anything)).matcher()
        row = np.zeros(-(-vocabulary.vocab_size // 32), dtype=np.int32)
        matcher.fill(row)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0]
    assert bits.tolist() == [i for i, token in enumerate(vocabulary.tokens) if token]
    assert token_trie(vocabulary).memory_bytes > 0


def weft_vocabulary() -> Any:
    from weft.grammar import Vocabulary

    return Vocabulary.from_tokens([b"", b"a", b"ab", b"a", b"abc", b"b", b"\xff\x00", b""], end_ids=[0])


class Raising(Brackets):
    method, place = "", 0

    def __init__(self) -> None:
        super().__init__()
        if self.method == "__init__":
            raise KeyError("planted")

    def byte_allowed(self, byte: int) -> bool:
        if self.method == "byte_allowed" and len(self.stack) > self.place:
            raise KeyError("planted")
        return super().byte_allowed(byte)

    def pop_bytes(self, count: int) -> None:
        if self.method == "pop_bytes":
            raise KeyError("planted")
        super().pop_bytes(count)

    def special_allowed(self, token: int) -> bool:
        if self.method == "special_allowed":
            raise KeyError("planted")
        return super().special_allowed(token)


def test_what_a_recogniser_raises_is_told(compiler: GuideCompiler) -> None:
    def made(method: str, place: int = 0) -> Matcher:
        kind = type("Planted", (Raising,), {"method": method, "place": place})
        return compiler.compile(Guide.recognizer(kind)).matcher()

    with pytest.raises(GuideError, match="the factory: KeyError: 'planted'"):
        made("__init__")
    for method in ("byte_allowed", "pop_bytes", "special_allowed"):
        matcher = made(method)
        with pytest.raises(GuideStateError, match=rf"{method}|try_push_byte: KeyError"):
            matcher.fill(new_row())
    matcher = made("byte_allowed", 2)
    assert matcher.accept(ids("(")[0])
    with pytest.raises(GuideStateError, match="try_push_byte: KeyError: 'planted'"):
        matcher.accept(PIECE[b"[["])
    assert matcher.validate(ids("[")) == 1
    with pytest.raises(GuideError, match="needs a method push_byte"):
        compiler.compile(Guide.recognizer(object)).matcher()  # type: ignore[arg-type]
    with pytest.raises(GuideError, match="function that makes recognizers"):
        Guide.recognizer(3)  # type: ignore[arg-type]


def test_a_recogniser_that_reads_otherwise_the_second_time(compiler: GuideCompiler) -> None:
    limits = iter([10, 2])
    matcher = compiler.compile(Guide.recognizer(lambda: Collapsing(next(limits)))).matcher()
    for token in ids("((("):
        assert matcher.accept(token)
    with pytest.raises(GuideStateError, match="refused token 43 when the text was read again"):
        matcher.rollback(1)
    with pytest.raises(GuideStateError, match="refused token 43"):
        matcher.fill(new_row())


def test_recognisers_are_let_go_of(compiler: GuideCompiler) -> None:
    kept: list[weakref.ref[Brackets]] = []

    def make() -> Brackets:
        recognizer = Collapsing()
        kept.append(weakref.ref(recognizer))
        return recognizer

    matcher = compiler.compile(Guide.recognizer(make)).matcher()
    assert matcher.accept(ids("(")[0])
    fork = matcher.fork()
    matcher.rollback(1)
    assert len(kept) == 3
    assert kept[0]() is None
    del matcher, fork
    gc.collect()
    assert [reference() for reference in kept] == [None] * 3


WRONG = {
    "not a library": ("text", "plug-in .*: .*(invalid ELF header|file too short)"),
    "no symbol": ("int nothing;", "exports no weft_plugin"),
    "another version": (
        "#include <weft/plugin.h>\nconst weft_plugin_ops weft_plugin = {99};",
        "version 99.*needs 1",
    ),
    "nothing made": (
        "#include <weft/plugin.h>\nconst weft_plugin_ops weft_plugin = {WEFT_PLUGIN_ABI};",
        "needs open, close, and one of",
    ),
}
MAKES = """
#include <weft/plugin.h>
#include <stdlib.h>
static const weft_matcher_ops ops = {%s};
static void *open_(const weft_vocabulary *v, const void *a, size_t n, char *e, size_t s) { return malloc(1); }
static int make(void *g, weft_matcher *made, char *e, size_t s) { *made = (weft_matcher){&ops, g}; return %d; }
const weft_plugin_ops weft_plugin = {WEFT_PLUGIN_ABI, open_, make, 0, free};
"""
WRONG["matchers of another version"] = (MAKES % ("1", 0), "matchers are of version 1, where weft needs 3")
WRONG["a matcher that lacks something"] = (MAKES % ("WEFT_MATCHER_ABI", 0), "lacks a function")
WRONG["a matcher of the version before"] = (MAKES % ("2", 0), "lacks a function")
WRONG["a matcher that can't be made"] = (MAKES % ("WEFT_MATCHER_ABI", -1), "does not say why")


@pytest.mark.parametrize("name", sorted(WRONG))
def test_plug_ins_that_are_wrong(compiler: GuideCompiler, tmp_path: Path, name: str) -> None:
    source, text = WRONG[name]
    library = tmp_path / "wrong.so"
    if name == "not a library":
        library.write_text(source)
    else:
        command = [
            "cc",
            "-x",
            "c",
            "-",
            "-shared",
            "-fPIC",
            "-I",
            str(weft.include_dir()),
            "-o",
            str(library),
        ]
        subprocess.run(command, input=source.encode(), check=True)
    with pytest.raises(GuideError, match=text):
        compiler.compile(Guide.plugin(library))


def test_what_a_plug_in_says_of_its_arg(compiler: GuideCompiler) -> None:
    with pytest.raises(GuideError, match=r"matcher_plugin\.so: give the number of digits as arg, 2 to 64"):
        compiler.compile(Guide.plugin(built("matcher_plugin"), "0"))
    with pytest.raises(GuideError, match="no such file"):
        Guide.plugin("nowhere.so")
    with pytest.raises(GuideError, match="bytes or text, not int"):
        Guide.plugin(built("matcher_plugin"), 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not those of the vocabulary"):
        _core.PluginGuide(str(built("matcher_plugin")), _core.TokenTexts([b"a"]), [0], 300, b"4")
