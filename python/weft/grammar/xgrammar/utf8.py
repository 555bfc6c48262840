"""Restricts XGrammar's grammars to valid UTF-8, because its character classes contain surrogates.

A model with byte tokens could sample a surrogate. The answer would then not decode, and its replacement characters
could exceed a `maxLength`.
"""

from __future__ import annotations

import json
import re

from weft.grammar.xgrammar.lengths import length_in_json
from weft.grammar.xgrammar.patterns import SURROGATES, in_json, pattern_of
from weft.grammar.xgrammar.rules import CHARACTERS, CHARACTERS_STAR, REGEX, read_serialised

IN_A_PATTERN = r"\uD800-\uDFFF"

# PARTS: the escapes, classes and dots of a pattern. MEMBERS: the members of a class. Neither can backtrack.
PARTS = re.compile(r"\\.|\[(?P<negated>\^?)(?P<members>(?:\\.|[^\]\\])*+)(?P<closed>\]?)|\.", re.DOTALL)
NOT_ASCII = re.compile(r"\\[\x00-\x7f]|\\?([^\x00-\x7f])", re.DOTALL)
MEMBERS = re.compile(r"\\.|.", re.DOTALL)
NEGATED = (r"\S", r"\W", r"\D")
OF_MANY = (*NEGATED, r"\s", r"\w", r"\d")


def kept_to_utf8(serialised: str) -> str:
    """Remove surrogates from the classes of a serialized grammar, and replace placeholders by their patterns. Raises
    `GuideError` for a pattern that XGrammar does not support."""
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
    """Replace a placeholder by its regular expression. Any other regular expression is returned unchanged."""
    name = bytes(byte & 0xFF for byte in expression[3:]).decode(errors="replace")
    regex = length_in_json(name)
    if regex is None:
        pattern = pattern_of(name)
        if pattern is None:
            return expression
        regex = in_json(pattern)
    return [REGEX, 1 + len(regex), 0, *regex.encode()]


def _without_surrogates(expression: list[int]) -> list[int]:
    """Remove surrogates from a class. Its numbers are its kind, the count of numbers after that, whether it is negated,
    and the first and last character of each range."""
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
    if not parts:  # a class of surrogates only stays, because an empty class has another meaning
        return expression
    return [kind, 1 + len(parts), is_negated, *parts]


def pattern_kept(pattern: str) -> str:
    """Rewrite a regular expression in ASCII, without surrogates. Only in an ASCII pattern does XGrammar exclude the
    characters that JSON must escape."""
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
        # Escape a leading hyphen, which would make a range with the surrogates before it.
        return f"[^{IN_A_PATTERN}{chr(92) if members.startswith('-') else ''}{members}]"
    return _class_kept(text, MEMBERS.findall(members))


def _class_kept(text: str, members: list[str]) -> str:
    """Split a class that contains `\\S`, `\\W` or `\\D` into alternatives, one for each complement, because a class
    can't exclude surrogates from a complement."""
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
