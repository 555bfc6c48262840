"""LLGuidance's errors in a line: where it is, and what is wrong; not how it shows the place."""

from __future__ import annotations

import re

PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ?")
REGEX = re.compile(r"regex parse error:.*?\nerror: ([^\n]+)", re.DOTALL)


def in_a_line(text: str, *, is_translated: bool) -> str:
    """An error about a grammar. Of what `is_translated`, places are those of a text that nobody has seen."""
    lines = text.replace("\\n", "\n")  # as errors of weft escape them
    place = PLACE.match(lines)
    of_regex = REGEX.search(lines)
    if place is None and of_regex is None:
        return text
    what = of_regex[1].strip() if of_regex else PLACE.sub("", lines).partition("\n")[0].strip()
    if place is None or is_translated:
        return what
    kind = "invalid regex: " if of_regex else ""
    return f"line {place[1]}, column {place[2]}: {kind}{what}"
