"""A guide of each kind that no grammar library compiles, for the small vocabulary of `grammars`."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import weft
from grammars import CountdownMatcher
from weft.grammar import Guide


class Forward:
    """A matcher that can't go back, nor be copied: weft takes its tokens again."""

    def __init__(self, resets: bool = False) -> None:
        self._inner = CountdownMatcher(5, (60, 61, 100))
        if resets:
            self.reset = self._inner.reset

    def accept(self, token: int) -> bool:
        return self._inner.accept(token)

    def fill(self, row: NDArray[np.int32]) -> None:
        self._inner.fill(row)

    def is_terminated(self) -> bool:
        return self._inner.is_terminated()


class Brackets:
    """A recogniser of brackets that close what they opened, at most `limit` of them."""

    def __init__(self, limit: int = 10) -> None:
        self.limit = limit
        self.stack: list[tuple[str, int]] = [("", 0)]

    def byte_allowed(self, byte: int) -> bool:
        opened, count = self.stack[-1]
        if chr(byte) in "([{":
            return count + len(opened) + 2 <= self.limit
        return bool(opened) and opened[-1] + chr(byte) in ("()", "[]", "{}")

    def push_byte(self, byte: int) -> None:
        opened, count = self.stack[-1]
        opened = opened + chr(byte) if chr(byte) in "([{" else opened[:-1]
        self.stack.append((opened, count + 1))

    def pop_bytes(self, count: int) -> None:
        del self.stack[len(self.stack) - count :]

    def special_allowed(self, token: int) -> bool:
        opened, count = self.stack[-1]
        return count > 0 and not opened


class Collapsing(Brackets):
    """One that forgets what it does not need, as AICI's do."""

    finished = 0

    def try_push_byte(self, byte: int) -> bool:
        if not self.byte_allowed(byte):
            return False
        self.push_byte(byte)
        return True

    def collapse(self) -> None:
        self.stack = self.stack[-1:]

    def trie_finished(self) -> None:
        assert len(self.stack) == 1
        type(self).finished += 1


class Copied(Collapsing):
    def fork(self) -> Copied:
        copy = Copied(self.limit)
        copy.stack = list(self.stack)
        return copy


@functools.cache
def built(name: str) -> Path:
    """The shared library of a plug-in in the examples, built with the headers that weft comes with."""
    source = Path(__file__).parents[1] / "examples" / f"{name}.c"
    library = Path(tempfile.mkdtemp(prefix="weft-plugin-")) / f"{name}.so"
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-I", str(weft.include_dir())]
    subprocess.run([*command, str(source), "-o", str(library)], check=True)
    return library


KINDS: dict[str, Callable[[], Guide]] = {
    "after a token": lambda: Guide.after(1, Guide.regex("[a-c]{1,9}")),
    "after a text": lambda: Guide.after("ab", Guide.json(), max_free_tokens=6),
    "after a letter": lambda: Guide.after('"', Guide.regex('[:} "]{2,5}'), max_free_tokens=2),
    "after twice": lambda: Guide.after("a", Guide.after(1, Guide.regex("[0-9]{3}"), max_free_tokens=1)),
    "after a token, Python": lambda: Guide.after(1, Guide.matcher(Forward), max_free_tokens=3),
    "Python": lambda: Guide.matcher(lambda: CountdownMatcher(4)),
    "Python, forward": lambda: Guide.matcher(Forward),
    "recogniser": lambda: Guide.recognizer(Brackets),
    "recogniser, collapsing": lambda: Guide.recognizer(Collapsing),
    "recogniser, collapsing and copied": lambda: Guide.recognizer(Copied),
    "plug-in": lambda: Guide.plugin(built("matcher_plugin"), "6"),
    "plug-in, recogniser": lambda: Guide.plugin(built("recognizer_plugin"), b"10"),
    "after a token, plug-in": lambda: Guide.after(
        1, Guide.plugin(built("matcher_plugin"), "4"), max_free_tokens=2
    ),
    "Python, forward and reset": lambda: Guide.matcher(lambda: Forward(resets=True)),
}
