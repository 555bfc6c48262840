"""Reads one answer in pieces of several sizes: the parts in a row must be the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from weft.parsing import Answer, AnswerParser, CallArguments, Content, Part, Reasoning

Make = Callable[[], AnswerParser]


def read(make: Make, text: str) -> Answer:
    """The answer, which is the same however its text is cut."""
    whole = parts_of(make(), [text])
    assert parts_of(make(), text) == whole
    for seed in range(2):
        assert parts_of(make(), pieces(text, random.Random(seed))) == whole
    return Answer.of(whole)


def parts_of(parser: AnswerParser, texts: Iterable[str]) -> list[Part]:
    """All parts, those that are one text as one."""
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
    """A text in pieces."""
    found = []
    while text:
        size = rng.choice([1, 2, 3, 5, 8, 20, 100])
        found.append(text[:size])
        text = text[size:]
    return found
