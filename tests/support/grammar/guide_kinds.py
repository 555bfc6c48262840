"""A guide of each kind that a grammar library alone does not compile, for the vocabularies of `grammars`: guides
after free text, custom matchers, programs, tags, tools and Lark."""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import weft
from support.grammar.grammars import END, CountdownMatcher
from support.wasm.digits import digits, forcing, splicing
from weft.grammar import Guide


class Forward:
    """A matcher without rollback and fork: weft feeds the tokens to a new matcher instead."""

    def __init__(self, resets: bool = False, ends: tuple[int, ...] = (END,)) -> None:
        self._inner = CountdownMatcher(5, (60, 61, 100), ends)
        if resets:
            self.reset = self._inner.reset

    def accept(self, token: int) -> bool:
        return self._inner.accept(token)

    def fill(self, row: NDArray[np.int32]) -> None:
        self._inner.fill(row)

    def is_terminated(self) -> bool:
        return self._inner.is_terminated()


class Brackets:
    """A recognizer of matching brackets, at most `limit` characters."""

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
    """A recognizer that drops state that it no longer needs, like AICI's."""

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
    """Compile one of the example plug-ins with weft's headers, and return its shared library."""
    source = EXAMPLES / f"{name}.c"
    library = Path(tempfile.mkdtemp(prefix="weft-plugin-")) / f"{name}.so"
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-I", str(weft.include_dir())]
    subprocess.run([*command, str(source), "-o", str(library)], check=True)
    return library


EXAMPLES = Path(__file__).parents[3] / "examples"
NAMED = 1
"""The special token that guides of `KINDS` name, as a trigger or in a grammar."""

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOLS = [{"type": "function", "function": {"name": "ab", "parameters": NUMBER}}]
TAGS = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<a"],
        "tags": [
            {
                "type": "tag",
                "begin": "<ab>",
                "content": {"type": "json_schema", "json_schema": NUMBER},
                "end": "</ab>",
            }
        ],
        "at_least_one": True,
    },
}


def kinds(ends: tuple[int, ...]) -> dict[str, Callable[[], Guide]]:
    """Guides by name, for a vocabulary with these end tokens."""
    forward = functools.partial(Forward, ends=ends)
    return {
        "after a token": lambda: Guide.after(NAMED, Guide.regex("[a-c]{1,9}")),
        "after a text": lambda: Guide.after("ab", Guide.json(), max_free_tokens=6),
        "after a letter": lambda: Guide.after('"', Guide.regex('[:} "]{2,5}'), max_free_tokens=2),
        "after twice": lambda: Guide.after(
            "a", Guide.after(NAMED, Guide.regex("[0-9]{3}"), max_free_tokens=1)
        ),
        "after a token, Python": lambda: Guide.after(NAMED, Guide.matcher(forward), max_free_tokens=3),
        "after a token, plug-in": lambda: Guide.after(
            NAMED, Guide.plugin(built("matcher_plugin"), "4"), max_free_tokens=2
        ),
        "after a text, wasm": lambda: Guide.after("b", digits(3), max_free_tokens=3),
        "Python": lambda: Guide.matcher(lambda: CountdownMatcher(4, ends=ends)),
        "Python, forward": lambda: Guide.matcher(forward),
        "Python, forward and reset": lambda: Guide.matcher(lambda: forward(resets=True)),
        "recogniser": lambda: Guide.recognizer(Brackets),
        "recogniser, collapsing": lambda: Guide.recognizer(Collapsing),
        "recogniser, collapsing and copied": lambda: Guide.recognizer(Copied),
        "plug-in": lambda: Guide.plugin(built("matcher_plugin"), "6"),
        "plug-in, recogniser": lambda: Guide.plugin(built("recognizer_plugin"), b"10"),
        "wasm": lambda: digits(5),
        "wasm, forced": lambda: Guide.wasm(forcing(byte_tokens(b"No ")), "5", trusted=True),
        "wasm, spliced": lambda: Guide.wasm(
            splicing(byte_tokens(b"13579"), 0, byte_tokens(b"02")), "6", trusted=True
        ),
        "tags": lambda: Guide.structural_tag(TAGS),
        "tools": lambda: Guide.tools(TOOLS, style="qwen_3", required=True),
        "Lark": lambda: Guide.lark(f'start: "a" <[{NAMED}]> (list | /[0-9]{{2}}/)\nlist: "[" list* "]"'),
        "Lark, schema": lambda: Guide.lark(f"start: %json {json.dumps(NUMBER)}"),
    }


def byte_tokens(text: bytes) -> list[int]:
    return [3 + byte for byte in text]


KINDS = kinds((END,))
