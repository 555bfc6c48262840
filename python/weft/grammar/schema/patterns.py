"""Regular expressions of schemas: whether one is found in a text, and some that the rewriting makes up."""

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
"""In so many ways Python may have to try a pattern on a text: it goes back and tries another for each."""
# What means something else to Python than to the specification or to a library.
DIALECT = re.compile(r"\\[bBAZzpPkuc1-9]|\(\?(?!:)|\[\[|&&|\[:|\$.|[*+?}]\+|\[\^?\]", re.DOTALL)
ANY = "[\\s\\S]"


@functools.lru_cache(maxsize=4096)
def found(pattern: str, text: str) -> bool | None:
    """Whether the pattern is found in the text; None where that is not to be known."""
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
    """In how many ways, at most, a pattern may be tried on a text of a length: where it begins, how often each part is
    repeated, and which alternatives are taken. Above `MAX_WAYS` any number of them."""
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
            least, most, repeated = content
            most = min(most, max(least, length))
            ways *= (most - least + 1) * _ways(repeated, length) ** min(most, MAX_WAYS.bit_length())
        if ways > MAX_WAYS:
            break
    return ways


def literal(text: str) -> str:
    """A pattern for a text as it stands."""
    return "".join(f"\\{char}" if char in r"\^$.|?*+()[]{}/" else shown(char) for char in text)


def none_of(texts: Iterable[str]) -> str:
    """A pattern for every text but these: where it leaves the tree that they make, or stops within it."""
    words = sorted(set(texts))
    starts: dict[str, set[str]] = {}
    for word in words:
        for i in range(len(word) + 1):
            starts.setdefault(word[:i], set())
            if i < len(word):
                starts[word[:i]].add(word[i])
    parts = []
    for start, nexts in starts.items():
        left = f"[^{''.join(in_class(char) for char in sorted(nexts))}]" if nexts else ANY
        parts.append(f"{literal(start)}{left}{ANY}*")
        if start not in words:
            parts.append(literal(start))
    return "^(?:" + "|".join(parts) + ")$"


TEXTS = re.compile(r"\^(\()?([\w -]+(?:\|[\w -]+)*)(?(1)\))\$")


def texts(pattern: str) -> list[str] | None:
    """The texts in which a pattern is found, where it lists them; None where there are others."""
    listed = TEXTS.fullmatch(pattern)
    if listed is None or (listed[1] is None and "|" in listed[2]):
        return None
    return listed[2].split("|")


CLASS = re.compile(r"\[(?P<no>\^)?(?P<inside>(?:\\[dwsrnt.,*+?()\[\]{}|/\\^$-]|[^\]\\^\[&~])+)\]")


@functools.lru_cache(maxsize=256)
def inverse(pattern: str) -> str | None:
    """A pattern found in all texts in which one is not; None where that is not to be known, or too long."""
    anchored = pattern.startswith("^") and pattern.endswith(("]+$", "]*$"))
    found = CLASS.fullmatch(pattern[1:-2] if anchored else pattern)
    if found is None:
        return None if _compiled(pattern) is None else complement(parser.parse(pattern, re.ASCII))
    other = f"[{'' if found['no'] else '^'}{found['inside']}]"
    if not anchored:
        return f"^{other}*$"
    return f"^$|{other}" if pattern.endswith("+$") else other


@functools.lru_cache(maxsize=1024)
def lengths(pattern: str) -> tuple[int, int | None]:
    """How long a text is at least, and at most, in which a pattern is found; (0, None) where that is not known."""
    if _compiled(pattern) is None:
        return 0, None
    parts = parser.parse(pattern, re.ASCII)
    least, most = parts.getwidth()
    is_whole = len(parts) > 1 and parts[0] == (AT, AT_BEGINNING) and parts[-1] == (AT, parser.AT_END)
    return least, most if is_whole and most < MAX_WAYS else None
