"""Texts of XGrammar's grammars kept to UTF-8: its classes hold the halves of surrogate pairs, which no text has.

A model of bytes could sample one; the answer would not decode, and what replaces it is longer than a bound allows.
"""

from __future__ import annotations

import json
import re
from typing import Any

from weft.grammar.xgrammar_rules import CHARACTERS, CHARACTERS_STAR, checked_version

HALVES = (0xD800, 0xDFFF)
IN_A_PATTERN = r"\uD800-\uDFFF"

# A pattern's escapes, its classes, and the dot.
PARTS = re.compile(r"\\.|\[(?P<negated>\^?)(?P<members>(?:\\.|[^\]\\])*+)\]|\.", re.DOTALL)
MEMBERS = re.compile(r"\\[SWD]")


def kept_to_utf8(serialised: str) -> str:
    """A grammar in XGrammar's serialised form, whose classes have no halves. Raises `GuideError` for an unknown one."""
    data = checked_version(serialised)
    numbers, starts = data["grammar_expr_data"], data["grammar_expr_indptr"]
    kept: list[int] = []
    kept_starts: list[int] = []
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        expression = numbers[start:end]
        kept_starts.append(len(kept))
        kept += _without_halves(expression) if expression[0] in (CHARACTERS, CHARACTERS_STAR) else expression
    if len(kept) == len(numbers):
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
    if isinstance(schema.get("patternProperties"), dict):
        schema["patternProperties"] = {
            pattern_kept(pattern): value for pattern, value in schema["patternProperties"].items()
        }


def pattern_kept(pattern: str) -> str:
    """A regular expression that matches the same texts, and none with halves."""
    return PARTS.sub(_part_kept, pattern)


def _part_kept(part: re.Match[str]) -> str:
    text, members = part[0], part["members"]
    if text == ".":
        return f"[^{IN_A_PATTERN}]"
    if members is None:
        return f"[^{text.lower()}{IN_A_PATTERN}]" if MEMBERS.fullmatch(text) else text
    if part["negated"]:
        return text if members.endswith(IN_A_PATTERN) else f"[^{members}{IN_A_PATTERN}]"
    negated = dict.fromkeys(MEMBERS.findall(members))
    if not negated:
        return text
    rest = MEMBERS.sub("", members)
    branches = [f"[^{member.lower()}{IN_A_PATTERN}]" for member in negated] + ([f"[{rest}]" if rest else ""])
    return f"(?:{'|'.join(filter(None, branches))})"
