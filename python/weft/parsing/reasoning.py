"""Finds the markers that a chat template puts around reasoning."""

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
"""The known pairs of markers. Each entry has a pattern that matches either marker, and templates of the begin and the
end marker."""


def reasoning_markers(chat_template: str) -> tuple[str, str] | None:
    """The begin and end markers of reasoning that a chat template mentions first; None if it has none."""
    matches = [
        (match.start(), match[1], begin, end)
        for pattern, begin, end in _PAIRS
        if (match := pattern.search(chat_template))
    ]
    if not matches:
        return None
    _, word, begin, end = min(matches)
    return begin.format(word), end.format(word)


def starts_inside(rendered_prompt: str, begin: str, end: str) -> bool:
    """Whether the prompt already opens the reasoning, so that no `end` comes after its last `begin`."""
    return rendered_prompt.rfind(begin) > rendered_prompt.rfind(end)
