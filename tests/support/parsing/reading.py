"""Reads an answer in pieces of several sizes. All must give the same parts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from weft.parsing import Answer, AnswerParser, CallArguments, Content, Part, Reasoning

Make = Callable[[], AnswerParser]


def read(make: Make, text: str) -> Answer:
    """Read an answer. The result must not depend on the pieces."""
    whole = parts_of(make(), [text])
    assert parts_of(make(), text) == whole
    for seed in range(2):
        assert parts_of(make(), pieces(text, random.Random(seed))) == whole
    return Answer.of(whole)


def parts_of(parser: AnswerParser, texts: Iterable[str]) -> list[Part]:
    """Return all parts. Consecutive parts of one text are joined."""
    parts: list[Part] = []
    for part in [*(part for text in texts for part in parser.feed(text)), *parser.finish()]:
        last = parts[-1] if parts else None
        if isinstance(part, Reasoning | Content) and type(last) is type(part):
            parts[-1] = type(part)(last.text + part.text)  # type: ignore[union-attr]
        elif isinstance(part, CallArguments) and isinstance(last, CallArguments):
            assert part.index == last.index
            parts[-1] = CallArguments(part.index, last.text + part.text)
        else:
            parts.append(part)
    return parts


def pieces(text: str, rng: random.Random) -> list[str]:
    """Split a text into random pieces."""
    found = []
    while text:
        size = rng.choice([1, 2, 3, 5, 8, 20, 100])
        found.append(text[:size])
        text = text[size:]
    return found
