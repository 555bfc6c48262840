"""Regular expressions of schemas: searching for one in a text, and building new ones for the rewriting."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterable
from re import _parser as parser  # type: ignore[attr-defined]  # what `re` compiles from; its names have no types
from typing import Any

from weft.grammar.schema.characters import in_class, shown
from weft.grammar.schema.complement import complement

AT, AT_BEGINNING, BRANCH = parser.AT, parser.AT_BEGINNING, parser.BRANCH
MAX_REPEAT, MIN_REPEAT, SUBPATTERN = parser.MAX_REPEAT, parser.MIN_REPEAT, parser.SUBPATTERN

MAX_TEXT = 200
MAX_PATTERN = 500
MAX_WAYS = 100_000
"""The maximum number of ways in which Python's `re` may match a pattern, since it may backtrack through all of them."""
# Syntax that has another meaning in Python than in the specification or in a library.
DIALECT = re.compile(r"\\[bBAZzpPkuc1-9]|\(\?(?!:)|\[\[|&&|\[:|\$.|[*+?}]\+|\[\^?\]", re.DOTALL)
ANY = "[\\s\\S]"


@functools.lru_cache(maxsize=4096)
def is_found(pattern: str, text: str) -> bool | None:
    """Whether a search for the pattern finds a match in the text; None if that can't be decided here."""
    if len(text) > MAX_TEXT or not text.isascii() or "\n" in text:
        return None
    compiled = _compiled(pattern)
    if compiled is None or _ways_to_search(pattern, len(text)) > MAX_WAYS:
        return None
    return compiled.search(text) is not None


@functools.lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    if len(pattern) > MAX_PATTERN or DIALECT.search(pattern):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(pattern, re.ASCII)
    except (re.error, Warning, RecursionError, OverflowError):
        return None


@functools.lru_cache(maxsize=1024)
def _ways_to_search(pattern: str, length: int) -> int:
    """An upper bound of the number of ways to match a pattern in a text of `length` characters: the product of start
    positions, repeat counts and alternatives. The computation stops early above `MAX_WAYS`."""
    parts = parser.parse(pattern, re.ASCII)
    begins = 1 if len(parts) and parts[0] == (AT, AT_BEGINNING) else length + 1
    return begins * _ways(parts, length)


def _ways(parts: Iterable[tuple[Any, Any]], length: int) -> int:
    ways = 1
    for kind, content in parts:
        if kind is BRANCH:
            ways *= sum(_ways(alternative, length) for alternative in content[1])
        elif kind is SUBPATTERN:
            ways *= _ways(content[-1], length)
        elif kind in (MAX_REPEAT, MIN_REPEAT):
            low, high, repeated = content
            high = min(high, max(low, length))
            ways *= (high - low + 1) * _ways(repeated, length) ** min(high, MAX_WAYS.bit_length())
        if ways > MAX_WAYS:
            break
    return ways


_DECIMAL = "^(?!^[-+.]*$)[+-]?0*"
_LIMITS = re.compile(
    r"\(\?:\\d\{0,(?P<whole>\d{1,2})\}\|\(\?=\[\\d\.\]\{1,(?P<size>\d{1,2})\}0\*\$\)"
    r"(?:\\d\{0,(?P=whole)\}\\\.\\d\{0,(?P<after>\d{1,2})\}|\\d\*\\\.\\d\*)0\*\$\)"
    r"|\\d\*\\\.\?(?:\\d\{0,(?P<places>\d{1,2})\}0\*|\\d\*)\$"
)


def without_look_around(pattern: str) -> str:
    """A pattern without look-around for the one that pydantic 2.12 and 2.13 write for a `Decimal`; any other pattern
    as it is, also a `Decimal` of 100 digits or more.

    With `max_digits` pydantic's pattern does not bound the digits before the point, because it lacks an anchor. The new
    one has the bounds of the type.
    """
    limits = _LIMITS.fullmatch(pattern.removeprefix(_DECIMAL))
    if limits is None or not pattern.startswith(_DECIMAL):
        return pattern
    whole, size, after, places = limits["whole"], limits["size"], limits["after"], limits["places"]
    if whole is None:
        digits, fraction = "[0-9]+", "[0-9]*" if places is None else f"[0-9]{{0,{places}}}0*"
        alone = "[0-9]+" if places is None else f"[0-9]{{1,{places}}}0*" if int(places) else "0+"
        return rf"^[+-]?(?:{digits}(?:\.{fraction})?|\.{alone})$"
    if after is not None:
        after = min(int(after), int(size) - 1)
        alone = f"[0-9]{{1,{after}}}0*" if after else "0+"
        if whole == "0":  # pydantic counts the digit of a 0 without a point
            return rf"^[+-]?0*\.{alone}$"
        digits = f"0*[0-9]{{1,{whole}}}"
        return rf"^[+-]?(?:{digits}(?:\.[0-9]{{0,{after}}}0*)?|\.{alone})$"
    limit = int(size) - 1
    parts = [rf"[0-9]{{{count}}}(?:\.[0-9]{{0,{limit - count}}}0*)?" for count in range(1, limit + 1)]
    return rf"^[+-]?0*(?:{'|'.join(parts)}|\.[0-9]{{1,{limit}}}0*)$"


def literal(text: str) -> str:
    """A pattern that matches exactly this text."""
    return "".join(f"\\{char}" if char in r"\^$.|?*+()[]{}/" else shown(char) for char in text)


def none_of(texts: Iterable[str]) -> str:
    """A pattern for every text except these. Such a text leaves the trie of `texts`, or ends inside it."""
    words = sorted(set(texts))
    tree: dict[str, set[str]] = {}
    for word in words:
        for i in range(len(word) + 1):
            tree.setdefault(word[:i], set())
            if i < len(word):
                tree[word[:i]].add(word[i])
    parts = []
    for start, nexts in tree.items():
        leaving = f"[^{''.join(in_class(char) for char in sorted(nexts))}]" if nexts else ANY
        parts.append(f"{literal(start)}{leaving}{ANY}*")
        if start not in words:
            parts.append(literal(start))
    return "^(?:" + "|".join(parts) + ")$"


TEXTS = re.compile(r"\^(\()?([\w -]+(?:\|[\w -]+)*)(?(1)\))\$")


def texts(pattern: str) -> list[str] | None:
    """The texts of a pattern that is just an anchored list of texts; None for any other pattern."""
    listed = TEXTS.fullmatch(pattern)
    if listed is None or (listed[1] is None and "|" in listed[2]):
        return None
    return listed[2].split("|")


CLASS = re.compile(r"\[(?P<no>\^)?(?P<inside>(?:\\[dwsrnt.,*+?()\[\]{}|/\\^$-]|[^\]\\^\[&~])+)\]")


@functools.lru_cache(maxsize=256)
def inverse(pattern: str) -> str | None:
    """A pattern that is found in exactly the texts in which `pattern` is not. None if it is unknown or too long."""
    anchored = pattern.startswith("^") and pattern.endswith(("]+$", "]*$"))
    single_class = CLASS.fullmatch(pattern[1:-2] if anchored else pattern)
    if single_class is None:
        return None if _compiled(pattern) is None else complement(parser.parse(pattern, re.ASCII))
    opposite = f"[{'' if single_class['no'] else '^'}{single_class['inside']}]"
    if not anchored:
        return f"^{opposite}*$"
    return f"^$|{opposite}" if pattern.endswith("+$") else opposite


@functools.lru_cache(maxsize=1024)
def lengths(pattern: str) -> tuple[int, int | None]:
    """The minimum and maximum length of a text in which a pattern is found. The minimum is 0 and the maximum None if
    they are unknown; None also means that there is no maximum."""
    if _compiled(pattern) is None:
        return 0, None
    parts = parser.parse(pattern, re.ASCII)
    low, high = parts.getwidth()
    is_whole = len(parts) > 1 and parts[0] == (AT, AT_BEGINNING) and parts[-1] == (AT, parser.AT_END)
    return low, high if is_whole and high < MAX_WAYS else None
