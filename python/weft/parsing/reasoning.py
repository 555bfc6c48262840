"""The markers that a chat template has around what a model thinks."""

from __future__ import annotations

import re

_WORD = "think|thinking|thought|thoughts|reasoning"
_PAIRS = (
    (re.compile(rf"<(?:/)?((?:\w+:)?(?:{_WORD}))>"), "<{}>", "</{}>"),
    (re.compile(rf"\[/?({_WORD})\]", re.IGNORECASE), "[{}]", "[/{}]"),
    (re.compile(rf"◁/?({_WORD})▷"), "◁{}▷", "◁/{}▷"),
    (re.compile(r"<\|(?:START|END)_(THINKING|THOUGHT|REASONING)\|>"), "<|START_{}|>", "<|END_{}|>"),
    (re.compile(rf"<\|(?:begin|end)_of_({_WORD})\|>"), "<|begin_of_{}|>", "<|end_of_{}|>"),
    (re.compile(rf"<\|(?:open|close)\|>({_WORD})<\|sep\|>"), "<|open|>{}<|sep|>", "<|close|>{}<|sep|>"),
)
"""What either marker looks like, and what both are, by the word inside."""


def reasoning_markers(chat_template: str) -> tuple[str, str] | None:
    """What a model's reasoning begins and ends with, as its chat template has it: the markers that come first there,
    whether both do or one; None for a template without such.
    """
    found = [
        (match.start(), match[1], begin, end)
        for pattern, begin, end in _PAIRS
        if (match := pattern.search(chat_template))
    ]
    if not found:
        return None
    _, word, begin, end = min(found)
    return begin.format(word), end.format(word)


def starts_inside(rendered_prompt: str, begin: str, end: str) -> bool:
    """Whether a prompt has begun the reasoning already: no `end` comes after its last `begin`."""
    return rendered_prompt.rfind(begin) > rendered_prompt.rfind(end)
