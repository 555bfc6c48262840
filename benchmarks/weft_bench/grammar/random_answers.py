"""Makes random answers within a guide's masks.

Random walks prefer characters that are hard to tell apart in JSON, and eventually end. Random values are written in
the various spellings of JSON, and kept if the guide accepts them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.grammar import Matcher, Vocabulary
from weft_bench.grammar.random_schemas import value

PIECES = [
    b'{"',
    b'":',
    b'": ',
    b'": "',
    b'", "',
    b'"}',
    b'"]',
    b'""',
    b", ",
    b": ",
    b"[[",
    b"]]",
    b"}}",
    b"],",
    b"},",
]
PIECES += [
    b'\\"',
    b"\\\\",
    b'\\\\"',
    b"\\n",
    b"\\u",
    b"\\u0041",
    b"\\u00e9",
    b"\\ud83d\\ude00",
    b"\\u0022",
    b"\\u005c",
]
PIECES += [
    b"\n",
    b"\r\n",
    b'\n"',
    b"\t\t",
    b"\x00\x01",
    b"\x7f\x7f",
    "é".encode(),
    "éa".encode(),
    "😀".encode(),
]
PIECES += [
    "\u2028".encode(),
    b"ab",
    b"abc",
    b"aab",
    b"ba",
    b"aa",
    b"true",
    b"false",
    b"null",
    b"12",
    b"00",
    b"-1",
]
PIECES += [
    b"0.",
    b".5",
    b"1e",
    b"e+",
    b"E-1",
    b'a"',
    b'b":',
    b'"a',
    b'"a":',
    b'{"a":',
    b'"b"',
    b"/",
    b"~",
    b"\xc3",
    b"\xed\xa0",
]
END = 0
MAX_STEPS, CLOSING_STEPS = 240, 40
"""A walk is abandoned after MAX_STEPS steps. After CLOSING_STEPS, it prefers tokens that close strings, arrays and
objects."""

GROUPS = [
    b'"',
    b"\\",
    bytes(range(32)),
    b" ",
    b"0123456789",
    b"abc",
    b"{}[]",
    b",:",
    b"/~-+.eE%@_",
    bytes(range(128, 256)),
]
CLOSERS = [b'"', b"}", b"]", b'"}', b'"]', b"}}", b"]]"]


def vocabulary() -> Vocabulary:
    """Return a vocabulary of an end token, all bytes, and tokens that span parts which a grammar must keep apart."""
    tokens = [b"", *(bytes([byte]) for byte in range(256)), *dict.fromkeys(p for p in PIECES if len(p) > 1)]
    return Vocabulary.from_tokens(tokens, end_ids=[END])


class Walker:
    """Makes random walks with matchers of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._size = vocabulary.vocab_size
        self._row = np.zeros(-(-self._size // 32), dtype=np.int32)
        tokens = vocabulary.tokens
        first = [[i for i, text in enumerate(tokens) if len(text) == 1 and text in group] for group in GROUPS]
        listed = {i for group in first for i in group}
        words = [i for i, text in enumerate(tokens) if len(text) > 1]
        others = [i for i, text in enumerate(tokens) if len(text) == 1 and i not in listed]
        self._groups = [np.array(group, dtype=np.int64) for group in (*first, words, others)]
        self._closers = np.array([i for i, text in enumerate(tokens) if text in CLOSERS], dtype=np.int64)

    def walk(self, rng: random.Random, matcher: Matcher) -> str | None:
        """Return a random text within the masks. None if it does not end in time, or if a library reaches a limit.
        Raises `AssertionError` if the matcher refuses a token that its mask allows."""
        tokens: list[int] = []
        ends = rng.choice([0.15, 0.5])
        try:
            for step in range(MAX_STEPS):
                bits = self._allowed(matcher)
                if bits[END] and (rng.random() < ends or step > CLOSING_STEPS or bits.sum() == 1):
                    return self._vocabulary.decode(tokens).decode("utf-8", "surrogateescape")
                tokens.append(self._next(rng, bits, step > CLOSING_STEPS))
                assert matcher.accept(tokens[-1]), (
                    f"token {tokens[-1]} is allowed after {tokens[:-1]}, but not taken"
                )
        except WeftError:  # a limit of the library
            return None
        return None

    def _allowed(self, matcher: Matcher) -> Any:
        if not matcher.fill(self._row):
            bits = np.ones(self._size, dtype=np.uint8)
        else:
            bits = np.unpackbits(self._row.view(np.uint8), bitorder="little")[: self._size]
        return bits

    def _next(self, rng: random.Random, bits: Any, is_closing: bool) -> int:
        """Pick a token. Each group of characters is equally likely, even if few of its characters are allowed."""
        if is_closing:
            found = self._closers[bits[self._closers] != 0]
            if len(found):
                return int(found[rng.randrange(len(found))])
        groups = [allowed for group in self._groups if len(allowed := group[bits[group] != 0])]
        group = rng.choice(groups)
        return int(group[rng.randrange(len(group))])

    def read(self, rng: random.Random, matcher: Matcher, count: int) -> Iterator[str]:
        """Write `count` random values as texts, and yield those that the matcher accepts."""
        for _ in range(count):
            separators = rng.choice([(", ", ": "), (",", ":")])
            text = json.dumps(value(rng), ensure_ascii=rng.random() < 0.3, separators=separators)
            if self.takes(matcher, text):
                yield text

    def takes(self, matcher: Matcher, text: str) -> bool:
        """Whether the matcher accepts a text byte by byte from its present state to the end. The matcher is not
        changed."""
        tokens = [*(1 + byte for byte in text.encode("utf-8", "surrogateescape")), END]
        return matcher.validate(tokens) == len(tokens)
