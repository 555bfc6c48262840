"""Looks for literals in text that is still to grow."""

from __future__ import annotations


def standing(text: str, at: int, literals: tuple[str, ...]) -> str | None:
    """Which of some literals, the longest first, stands at a place: "" for none, None where that is open."""
    for literal in literals:
        if text.startswith(literal, at):
            return literal
        if len(text) - at < len(literal) and literal.startswith(text[at:]):
            return None
    return ""


def until(text: str, start: int, literals: tuple[str, ...]) -> tuple[int, str | None]:
    """The first place from `start` on where one of some literals stands, the longest first; all begin with one
    character. None for the literal where the text has none, and what follows the place may become one.
    """
    at = start
    if len(literals) == 1:
        found = text.find(literals[0], start)
        if found >= 0:
            return found, literals[0]
        at = max(start, len(text) - len(literals[0]) + 1)
    while (at := text.find(literals[0][0], at)) >= 0:
        stands = standing(text, at, literals)
        if stands != "":
            return at, stands
        at += 1
    return len(text), None
