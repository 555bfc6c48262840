"""Texts of XGrammar's grammars kept to UTF-8: its classes hold the halves of surrogate pairs, which no text has.

A model of bytes could sample one; the answer would not decode, and what replaces it is longer than a bound allows.
"""

from __future__ import annotations

import json
import re
from typing import Any

from weft.grammar.xgrammar.rules import CHARACTERS, CHARACTERS_STAR, read_serialised

HALVES = (0xD800, 0xDFFF)
IN_A_PATTERN = r"\uD800-\uDFFF"

# A pattern's escapes, its classes, and the dot; and the members of a class. No part can be read in two ways.
PARTS = re.compile(r"\\.|\[(?P<negated>\^?)(?P<members>(?:\\.|[^\]\\])*+)(?P<closed>\]?)|\.", re.DOTALL)
MEMBERS = re.compile(r"\\.|.", re.DOTALL)
NEGATED = (r"\S", r"\W", r"\D")
OF_MANY = (*NEGATED, r"\s", r"\w", r"\d")


def kept_to_utf8(serialised: str) -> str:
    """A grammar in XGrammar's serialised form, whose classes have no halves. Raises `GuideError` for an unknown one."""
    data = read_serialised(serialised)
    numbers, starts = data["grammar_expr_data"], data["grammar_expr_indptr"]
    kept: list[int] = []
    kept_starts: list[int] = []
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        expression = numbers[start:end]
        kept_starts.append(len(kept))
        kept += _without_halves(expression) if expression[0] in (CHARACTERS, CHARACTERS_STAR) else expression
    if kept == numbers:
        return serialised
    data["grammar_expr_data"], data["grammar_expr_indptr"] = kept, kept_starts
    return json.dumps(data, separators=(",", ":"))


def _without_halves(expression: list[int]) -> list[int]:
    """A class: its kind, how many numbers follow, whether it is negated, and the ends of each of its ranges."""
    kind, _, is_negated, *ends = expression
    if is_negated:
        parts = [*ends, *HALVES]
    else:
        parts = []
        for low, high in zip(ends[::2], ends[1::2], strict=True):
            if low > HALVES[1] or high < HALVES[0]:
                parts += [low, high]
                continue
            if low < HALVES[0]:
                parts += [low, HALVES[0] - 1]
            if high > HALVES[1]:
                parts += [HALVES[1] + 1, high]
    if not parts:  # nothing but halves: left as it is, for an empty class means something else
        return expression
    return [kind, 1 + len(parts), is_negated, *parts]


def spelled(schema: Any) -> None:
    """Spells the patterns of a schema object, in place, so that they match no halves: XGrammar reads them late."""
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = pattern_kept(schema["pattern"])
    named = schema.get("patternProperties")
    if isinstance(named, dict):
        kept = {pattern: pattern_kept(pattern) for pattern in named}
        if len(set(kept.values())) == len(kept):
            schema["patternProperties"] = {kept[pattern]: value for pattern, value in named.items()}


def pattern_kept(pattern: str) -> str:
    """A regular expression that matches the same texts, and none with halves."""
    return PARTS.sub(_part_kept, pattern)


def _part_kept(part: re.Match[str]) -> str:
    text, members = part[0], part["members"]
    if text == ".":
        return f"[^{IN_A_PATTERN}]"
    if members is None:
        return f"[^{IN_A_PATTERN}{text.lower()}]" if text in NEGATED else text
    if not part["closed"] or members.startswith(IN_A_PATTERN):
        return text
    if part["negated"]:
        # A hyphen would be the range's.
        return f"[^{IN_A_PATTERN}{chr(92) if members.startswith('-') else ''}{members}]"
    return _class_kept(text, MEMBERS.findall(members))


def _class_kept(text: str, members: list[str]) -> str:
    """A class that may hold the complement of another one: alternatives, since a class can't leave out a part."""
    negated = [member for member in dict.fromkeys(members) if member in NEGATED]
    if not negated:
        return text
    rest, i = "", 0
    while i < len(members):
        member, *following = members[i : i + 3]
        if following[:1] == ["-"] and len(following) == 2 and not {member, following[1]} & set(OF_MANY):
            rest += f"{member}-{following[1]}"
            i += 3
            continue
        if member not in NEGATED:
            rest += f"\\{member}" if member in "^-" else member
        i += 1
    branches = [f"[^{IN_A_PATTERN}{member.lower()}]" for member in negated] + ([f"[{rest}]"] if rest else [])
    return f"(?:{'|'.join(branches)})"
