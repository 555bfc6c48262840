"""A small vocabulary, guides for it, and matchers, for tests of grammars."""

from __future__ import annotations

import functools
import itertools
import random

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.errors import GuideError
from weft.grammar import Backend, CompiledGuide, Guide, Vocabulary
from weft.grammar.xgrammar.backend import XGrammarBackend
from weft_bench.vocabulary import synthetic_vocabulary

END = 0
PIECES = [
    b'{"',
    b'":',
    b'", "',
    b'"}',
    b"ab",
    b"abc",
    b"true",
    b"null",
    b"12",
    b": ",
    b"[[",
    b"]]",
    b", ",
    b'": "',
    b"aa",
]


@functools.cache
def small_vocabulary() -> Vocabulary:
    """A vocabulary of 300 ids: 0 is the end, 1 and 2 are special, then all bytes, some longer pieces, and padding."""
    tokens = [b""] * 3 + [bytes([byte]) for byte in range(256)] + PIECES
    return Vocabulary.from_tokens(tokens, end_ids=[END], special_ids=[1, 2], vocab_size=300)


NUM_NAMED, NUM_PADDED = 10, 7


@functools.cache
def vocabulary(size: int) -> Vocabulary:
    """A vocabulary of `size` ids that begins like the small one. Then come words, special tokens whose text a
    grammar could match (the first of them is a second end token), and padding."""
    tokens = [b""] * 3 + [bytes([byte]) for byte in range(256)] + PIECES
    words = (word for word in synthetic_vocabulary(size).tokens if len(word) > 1 and word not in PIECES)
    specials = range(size - NUM_PADDED - NUM_NAMED, size - NUM_PADDED)
    tokens += itertools.islice(words, specials.start - len(tokens))
    return Vocabulary.from_tokens(
        [*tokens, *(b"ab" for _ in specials)],
        end_ids=[END, specials[0]],
        special_ids=[1, 2, *specials],
        vocab_size=size,
    )


@functools.cache
def backend(native: bool | None = None) -> XGrammarBackend:
    """An XGrammar backend for the small vocabulary, with native matchers or through Python."""
    return XGrammarBackend(small_vocabulary(), threads=1, native=native)


@functools.cache
def some_guides() -> tuple[Guide, ...]:
    """Guides that end soon, end late, or never have to end, and one that allows most tokens."""
    schema = {
        "type": "object",
        "properties": {"ab": {"type": "integer"}, "c": {"enum": ["x", "y"]}},
        "required": ["ab", "c"],
    }
    return (
        Guide.json_schema(schema),
        Guide.regex("(ab|a|abc)*c"),
        Guide.regex("[a-z ]{3,9}"),
        Guide.choice(["true", "null", "abcabc"]),
        Guide.ebnf('root ::= "[" root "]" | "12"'),
        Guide.json(),
    )


@functools.cache
def compiled(guide: Guide, native: bool | None = None) -> CompiledGuide:
    """Compile a guide for the small vocabulary, once."""
    return backend(native).compile(guide)


def has_kind(library: Backend, kind: str) -> bool:
    """Whether a library declares that it compiles guides of this kind."""
    kinds = getattr(library, "kinds", None)
    return kinds is None or kind in kinds


def compiled_by(library: Backend, guide: Guide) -> CompiledGuide:
    """Compile a guide. If the library does not declare the guide's kind, check that it refuses the guide, and skip
    the test."""
    if not has_kind(library, guide.kind):
        with pytest.raises(GuideError):
            library.compile(guide)
        pytest.skip(f"the library refuses guides of kind {guide.kind}, as it says")
    return library.compile(guide)


def allowed(row: NDArray[np.int32]) -> list[int]:
    """The tokens that a mask row allows."""
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return [int(token) for token in bits[:300].nonzero()[0]]


def num_words() -> int:
    return -(-small_vocabulary().vocab_size // 32)


def new_row() -> NDArray[np.int32]:
    return np.zeros(num_words(), dtype=np.int32)


def pick(tokens: list[int], rng: random.Random, end_rarely: bool = True) -> int:
    """Pick a random token. End tokens are mostly avoided, so that texts grow."""
    if end_rarely and len(tokens) > 1 and END in tokens and rng.random() < 0.8:
        tokens = [token for token in tokens if token != END]
    return rng.choice(tokens)


class CountdownMatcher:
    """A matcher in Python: `length` tokens from `letters`, then an end token."""

    def __init__(
        self, length: int, letters: tuple[int, ...] = (100, 101), ends: tuple[int, ...] = (END,)
    ) -> None:
        self.length = length
        self.letters = letters
        self.ends = ends
        self.taken: list[int] = []

    def accept(self, token: int) -> bool:
        if self.is_terminated() or token not in self._allowed():
            return False
        self.taken.append(token)
        return True

    def fill(self, row: NDArray[np.int32]) -> None:
        words = row.view(np.uint32)
        for token in self._allowed():
            words[token // 32] |= np.uint32(1 << (token % 32))

    def rollback(self, count: int) -> None:
        if count > len(self.taken):
            raise ValueError(f"can't take back {count} of {len(self.taken)} tokens")
        del self.taken[len(self.taken) - count :]

    def is_terminated(self) -> bool:
        return bool(self.taken) and self.taken[-1] in self.ends

    def fork(self) -> CountdownMatcher:
        copy = CountdownMatcher(self.length, self.letters, self.ends)
        copy.taken = list(self.taken)
        return copy

    def reset(self) -> None:
        self.taken.clear()

    def _allowed(self) -> tuple[int, ...]:
        if self.is_terminated():
            return self.ends
        return self.letters if len(self.taken) < self.length else self.ends


def ids(text: str) -> list[int]:
    """The bytes of a text as tokens of `small_vocabulary`."""
    return [3 + byte for byte in text.encode()]


def takes(backend: Backend, guide: Guide, text: str) -> bool:
    """Whether the guide accepts the whole text, and then the end token."""
    tokens = [*ids(text), END]
    return backend.compile(guide).matcher().validate(tokens) == len(tokens)
