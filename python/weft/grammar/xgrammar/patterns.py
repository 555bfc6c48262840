r"""Translates a schema's `pattern`, which applies to a string's value, to a regular expression over the JSON text
between the quotes.

XGrammar would match a pattern against the JSON text itself, and excludes quotes, backslashes and control characters
only in some patterns. So XGrammar first gets a placeholder for each pattern (`named`), which becomes a rule. Later the
rule gets the translated pattern (`in_json`). Each character has one form: itself if JSON allows it, else its short
escape, else `\u00XX`. `\d` and `\w` are ASCII, and a dot matches no line end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from weft.errors import GuideError
from weft.grammar.schema import structure as json_schema
from weft.grammar.schema.characters import DIGITS, MAX_CODE, WORDS, Ranges, outside

SURROGATES = (0xD800, 0xDFFF)
PREFIX = "weft pattern "
SHORT = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}
UNESCAPED: Ranges = [(0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF)]
# Whitespace as in ECMA-262. Characters that only some regex engines count as whitespace match neither `\s` nor `\S`,
# so that every validator agrees with the answer.
BLANKS: Ranges = [
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
]
BLANKS += [(0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)]
MAYBE_BLANKS: Ranges = [*BLANKS, (0x1C, 0x1F), (0x85, 0x85), (0xFEFF, 0xFEFF)]
ALL_CONTROLS = set(range(0x20)) - {0x0A}
LINE_ENDS: Ranges = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]
LEAST = {"d": DIGITS, "w": WORDS, "s": BLANKS}
MOST = {"d": DIGITS, "w": WORDS, "s": MAYBE_BLANKS}
CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}

TOKEN = re.compile(
    r"""(?P<look>\(\?<?[=!])|(?P<open>\((?:\?:|\?P?<[A-Za-z_]\w*>|(?!\?)))|(?P<close>\))|(?P<or>\|)|(?P<anchor>[\^$])
    |(?P<times>(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\}))\??|(?P<class>\[(?:\\.|[^\]\\])*+\])|(?P<dot>\.)
    |(?P<escape>\\(?:u\{[0-9A-Fa-f]{1,6}\}|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|c[A-Za-z]|.))|(?P<char>[^\\\[(*+?])""",
    re.DOTALL | re.VERBOSE,
)
MEMBER = re.compile(
    r"\\(?:u\{[0-9A-Fa-f]{1,6}\}|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|c[A-Za-z]|.)|[^\\]", re.DOTALL
)


def named(pattern: str) -> str:
    """A placeholder that XGrammar gets instead of a pattern."""
    return PREFIX + pattern.encode("utf-8", "surrogatepass").hex()


def pattern_of(name: str) -> str | None:
    """The pattern of a placeholder; None for any other text."""
    if not name.startswith(PREFIX):
        return None
    return bytes.fromhex(name.removeprefix(PREFIX)).decode("utf-8", "surrogatepass")


def in_json(pattern: str) -> str:
    """Translate a pattern to an ASCII regular expression over the JSON text between the quotes. It matches strings
    whose whole value the pattern matches. Look-around and anchors are dropped. Raises `GuideError` for syntax that
    XGrammar does not support."""
    parts: list[str] = []
    open_groups: list[int] = []
    position, last_part, is_group, pattern = 0, 0, False, _paired(pattern)
    while position < len(pattern):
        token = TOKEN.match(pattern, position)
        if token is None:
            raise _refused(pattern, pattern[position : position + 2])
        kind, text, position = str(token.lastgroup), token[token.lastgroup or 0], token.end()
        if kind == "look":
            position = _after_group(pattern, position)
        elif kind == "open":
            open_groups.append(len(parts))
            parts.append("(?:")
        elif kind == "close":
            if not open_groups:
                raise _refused(pattern, ") without (")
            last_part, is_group = open_groups.pop(), True
            parts.append(")")
        elif kind == "times":
            if pattern[position : position + 1] in ("*", "+", "?"):
                raise _refused(pattern, token[0] + pattern[position])
            parts[last_part:] = [_repeated("".join(parts[last_part:]), text, is_group)]
        elif kind == "or":
            parts.append("|")
        elif kind != "anchor":
            last_part, is_group = len(parts), False
            parts.append(_spelled(_ranges(pattern, kind, text), pattern))
    if open_groups:
        raise _refused(pattern, "( without )")
    return "".join(parts) or "(?:)"


def _repeated(part: str, times: str, is_group: bool) -> str:
    """Repeat a part. An optional group becomes an alternative with the empty text, because of an XGrammar bug. After it
    skips an optional group, it still allows a repetition inside the group to continue."""
    if not is_group:
        return part + times
    low = int(times[1:].partition(",")[0].rstrip("}")) if times[0] == "{" else 0
    if times == "+" or low:
        return part + times
    bounds = "+" if times == "*" else "" if times == "?" else f"{{1,{times.partition(',')[2]}"
    return "(?:)" if times in ("{0}", "{0,0}") else f"(?:{part}{bounds}|)"


def _refused(pattern: str, syntax: str) -> GuideError:
    return GuideError(
        f"JSON schema: pattern {json_schema.shown(pattern)}: XGrammar has no {json_schema.shown(syntax)}"
    )


def _after_group(pattern: str, position: int) -> int:
    """The position after the end of the group that encloses a position."""
    depth = 1
    while depth:
        token = TOKEN.match(pattern, position)
        if token is None:
            raise _refused(pattern, pattern[position : position + 2] or "end of a group")
        depth += token.lastgroup in ("look", "open")
        depth -= token[0] == ")"
        position = token.end()
    return position


def _ranges(pattern: str, kind: str, text: str) -> Ranges:
    """The characters that a dot, class, escape or plain character matches."""
    if kind == "dot":
        return outside(LINE_ENDS)
    if kind == "class":
        return _of_class(pattern, text)
    return _of_escape(pattern, text) if kind == "escape" else [(ord(text), ord(text))]


def _of_escape(pattern: str, text: str, in_class: bool = False, is_denied: bool = False) -> Ranges:
    name = text[1]
    if name in "dws":
        return (MOST if is_denied else LEAST)[name]
    if name in "DWS":
        return outside((LEAST if is_denied else MOST)[name.lower()])
    if name in CONTROLS:
        code = CONTROLS[name]
    elif name == "b" and in_class:
        code = 0x08
    elif name == "0":
        code = 0
    elif name in "xu" and len(text) > 2:
        code = int(text[2:].strip("{}"), 16)
    elif name == "c" and len(text) > 2:
        code = ord(text[2]) % 32
    elif name.isascii() and name.isalnum():
        raise _refused(pattern, text)
    else:
        code = ord(name)
    if code > MAX_CODE:
        raise _refused(pattern, text)
    return [(code, code)]


def _of_class(pattern: str, text: str) -> Ranges:
    members = MEMBER.findall(text[1:-1].removeprefix("^"))
    is_denied = text.startswith("[^")
    ranges: Ranges = [(0, MAX_CODE)] if {"\\s", "\\S"} <= set(members) else []
    i = 0
    while i < len(members):
        start = _of_member(pattern, members[i], is_denied)
        is_range = members[i + 1 : i + 2] == ["-"] and i + 2 < len(members)
        end = _of_member(pattern, members[i + 2], is_denied) if is_range else None
        if end is not None and _is_one(start) and _is_one(end):
            if end[0][0] < start[0][0]:
                raise _refused(pattern, "".join(members[i : i + 3]))
            ranges.append((start[0][0], end[0][0]))
            i += 3
            continue
        ranges += start
        i += 1
    return outside(ranges) if is_denied else ranges


def _of_member(pattern: str, text: str, is_denied: bool) -> Ranges:
    return _of_escape(pattern, text, True, is_denied) if text[0] == "\\" else [(ord(text), ord(text))]


def _is_one(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u([Dd][89ABab][0-9A-Fa-f]{2})\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})")


def _paired(text: str) -> str:
    """The pattern with each escaped surrogate pair replaced by the escape of one character."""

    def whole(pair: re.Match[str]) -> str:
        high, low = int(pair[2], 16) - 0xD800, int(pair[3], 16) - 0xDC00
        return f"{pair[1]}\\u{{{0x10000 + (high << 10) + low:x}}}"

    return PAIR.sub(whole, text)


def _within(ranges: Ranges, others: Iterable[tuple[int, int]]) -> Ranges:
    """The intersection of two sets of characters."""
    overlaps = [(max(a, c), min(b, d)) for a, b in ranges for c, d in others]
    return sorted((low, high) for low, high in overlaps if low <= high)


def _spelled(ranges: Ranges, pattern: str) -> str:
    """A pattern for the JSON forms of any one of the characters."""
    ways = []
    plain = outside(outside(_within(ranges, UNESCAPED)))
    if plain:
        ways.append(_class(plain))
    low = {code for first, last in ranges for code in range(first, min(last, 0x5C) + 1)}
    short = [name for code, name in SHORT.items() if code in low]
    if short:
        ways.append(rf"\\{_class([(ord(name), ord(name)) for name in short])}")
    for digit in (0, 1):
        codes = [code for code in range(16 * digit, 16 * digit + 16) if code in low and code not in SHORT]
        if codes:
            digits = sorted({f(f"{code % 16:x}") for code in codes for f in (str.lower, str.upper)})
            ways.append(rf"\\u00{digit}{_class([(ord(d), ord(d)) for d in digits])}")
    if not ways:
        raise GuideError(
            f"JSON schema: pattern {json_schema.shown(pattern)}: a part of it is met by no character"
        )
    return ways[0] if len(ways) == 1 and plain else f"(?:{'|'.join(ways)})"


def _class(ranges: Ranges) -> str:
    """A character class, or a plain character for a single one. There is a class for each UTF-8 length, since XGrammar
    accepts invalid UTF-8 for a class of mixed lengths."""
    if _is_one(ranges):
        return _char(ranges[0][0])
    classes = []
    for first, last in ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, MAX_CODE)):
        parts = [
            _char(low) if low == high else f"{_char(low)}-{_char(high)}"
            for low, high in sorted(_within(ranges, [(first, last)]))
        ]
        classes += [f"[{''.join(parts)}]"] if parts else []
    return classes[0] if len(classes) == 1 else f"(?:{'|'.join(classes)})"


def _char(code: int) -> str:
    if code < 0x80:
        return chr(code) if chr(code).isalnum() else f"\\x{code:02x}"
    return f"\\u{{{code:x}}}"


def without_nul(pattern: str) -> str:
    """Change a pattern to avoid an LLGuidance bug: a class with all control characters also matches quotes and
    backslashes. Such a class loses U+0000, unless it has these two characters. A pattern that can't be parsed here is
    returned unchanged."""
    parts, position = [], 0
    while position < len(pattern):
        token = TOKEN.match(pattern, position)
        if token is None:
            return pattern
        position = token.end()
        parts.append(_without_nul(pattern, token[0]) if token.lastgroup == "class" else token[0])
    return "".join(parts)


def _without_nul(pattern: str, text: str) -> str:
    try:
        ranges = _of_class(pattern, text)
    except GuideError:
        return text
    codes = {code for low, high in ranges for code in range(low, min(high, 0x5C) + 1)}
    if not codes >= ALL_CONTROLS or {0x22, 0x5C} <= codes:
        return text
    kept = outside([*outside(ranges), (0, 0), SURROGATES])
    return f"[{''.join(f'{_char(low)}-{_char(high)}' for low, high in kept)}]"


def check_regex(pattern: str) -> None:
    """Raise `GuideError` for look-around, and for anchors inside the pattern."""
    if json_schema.looks_around(pattern):
        raise GuideError(f"regex {json_schema.shown(pattern)}: XGrammar has no look-around")
    check_anchors(pattern)


def check_anchors(pattern: str) -> None:
    """Raise `GuideError` for anchors inside the pattern, which XGrammar would ignore."""
    if json_schema.has_inner_anchor(pattern):
        raise GuideError("regex: XGrammar would ignore a ^ or $ that does not stand at its ends")
