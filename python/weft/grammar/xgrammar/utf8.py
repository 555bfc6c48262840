"""XGrammar's grammars restricted to valid UTF-8: its character classes contain surrogates, which no text has.

A model of bytes could sample one. The answer would then not decode, and the replacement characters would exceed a
bound of length.
"""

from __future__ import annotations

import json
import re

from weft.grammar.xgrammar.lengths import length_in_json
from weft.grammar.xgrammar.patterns import SURROGATES, in_json, pattern_of
from weft.grammar.xgrammar.rules import CHARACTERS, CHARACTERS_STAR, REGEX, read_serialised

IN_A_PATTERN = r"\uD800-\uDFFF"

# A pattern's escapes, its classes, and the dot; and the members of a class. No part can match in two ways.
PARTS = re.compile(r"\\.|\[(?P<negated>\^?)(?P<members>(?:\\.|[^\]\\])*+)(?P<closed>\]?)|\.", re.DOTALL)
NOT_ASCII = re.compile(r"\\[\x00-\x7f]|\\?([^\x00-\x7f])", re.DOTALL)
MEMBERS = re.compile(r"\\.|.", re.DOTALL)
NEGATED = (r"\S", r"\W", r"\D")
OF_MANY = (*NEGATED, r"\s", r"\w", r"\d")


def kept_to_utf8(serialised: str) -> str:
    """A grammar in XGrammar's serialized form, without surrogates in its classes, and with patterns in place of their
    names. Raises `GuideError` for a pattern that XGrammar does not have."""
    data = read_serialised(serialised)
    numbers, starts = data["grammar_expr_data"], data["grammar_expr_indptr"]
    kept: list[int] = []
    kept_starts: list[int] = []
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        expression = numbers[start:end]
        kept_starts.append(len(kept))
        if expression[0] in (CHARACTERS, CHARACTERS_STAR):
            expression = _without_surrogates(expression)
        elif expression[0] == REGEX:
            expression = _of_pattern(expression)
        kept += expression
    if kept == numbers:
        return serialised
    data["grammar_expr_data"], data["grammar_expr_indptr"] = kept, kept_starts
    return json.dumps(data, separators=(",", ":"))


def _of_pattern(expression: list[int]) -> list[int]:
    """A regular expression; the name of a pattern is replaced by its expression."""
    name = bytes(byte & 0xFF for byte in expression[3:]).decode(errors="replace")
    regex = length_in_json(name)
    if regex is None:
        pattern = pattern_of(name)
        if pattern is None:
            return expression
        regex = in_json(pattern)
    return [REGEX, 1 + len(regex), 0, *regex.encode()]


def _without_surrogates(expression: list[int]) -> list[int]:
    """A class without surrogates. It holds its kind, the number of numbers that follow, whether it is negated, and
    the ends of each range."""
    kind, _, is_negated, *ends = expression
    if is_negated:
        parts = [*ends, *SURROGATES]
    else:
        parts = []
        for low, high in zip(ends[::2], ends[1::2], strict=True):
            if low > SURROGATES[1] or high < SURROGATES[0]:
                parts += [low, high]
                continue
            if low < SURROGATES[0]:
                parts += [low, SURROGATES[0] - 1]
            if high > SURROGATES[1]:
                parts += [SURROGATES[1] + 1, high]
    if not parts:  # an empty class would mean something else, so a class of surrogates alone stays
        return expression
    return [kind, 1 + len(parts), is_negated, *parts]


def pattern_kept(pattern: str) -> str:
    """A regular expression in ASCII that matches the same texts, except those with surrogates. Only from patterns in
    ASCII does XGrammar keep out what JSON escapes."""
    return NOT_ASCII.sub(_in_ascii, PARTS.sub(_part_kept, pattern))


def _in_ascii(part: re.Match[str]) -> str:
    code = ord(part[1]) if part[1] else 0
    return part[0] if not code else f"\\u{code:04x}" if code < 0x10000 else f"\\u{{{code:x}}}"


def _part_kept(part: re.Match[str]) -> str:
    text, members = part[0], part["members"]
    if text == ".":
        return f"[^{IN_A_PATTERN}]"
    if members is None:
        return f"[^{IN_A_PATTERN}{text.lower()}]" if text in NEGATED else text
    if not part["closed"] or members.startswith(IN_A_PATTERN):
        return text
    if part["negated"]:
        # Unescaped, a leading hyphen would make a range with the surrogates before it.
        return f"[^{IN_A_PATTERN}{chr(92) if members.startswith('-') else ''}{members}]"
    return _class_kept(text, MEMBERS.findall(members))


def _class_kept(text: str, members: list[str]) -> str:
    """A class with the complement of another class in it, as alternatives: a class can't leave out a part."""
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
