"""Regular expressions of schemas: whether one is found in a text, and some that the rewriting makes up."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterable

MAX_TEXT = 200
MAX_PATTERN = 500
# What one may be matched with by Python: no part of it can be tried in more ways than the text is long, to the square.
REPEATS = re.compile(
    r"\\.|\[(?:\\.|[^\]\\])*\]|(?P<repeat>[*+]|\{\d+(?:,\d*)?\})|(?P<open>\()|(?P<close>\))", re.DOTALL
)
# What means something else to Python than to the specification or to a library.
DIALECT = re.compile(r"\\[bBAZzpPkuc1-9]|\(\?|\[\[|&&|\[:|\$.|[*+?}]\+|\[\^?\]", re.DOTALL)
ANY = "[\\s\\S]"


@functools.lru_cache(maxsize=4096)
def found(pattern: str, text: str) -> bool | None:
    """Whether the pattern is found in the text; None where that is not to be known."""
    compiled = _compiled(pattern)
    if compiled is None or len(text) > MAX_TEXT or not text.isascii():
        return None
    return compiled.search(text) is not None if "\n" not in text else None


@functools.lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    if len(pattern) > MAX_PATTERN or DIALECT.search(pattern) or not _is_simple(pattern):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(pattern, re.ASCII)
    except (re.error, Warning, RecursionError, OverflowError):
        return None


def _is_simple(pattern: str) -> bool:
    """At most four repeats, none of them within another."""
    count, inside, last_group = 0, [0], 0
    for part in REPEATS.finditer(pattern):
        if part["open"]:
            inside.append(0)
        elif part["close"] and len(inside) > 1:
            last_group = inside.pop()
            inside[-1] += last_group
            follows = pattern[part.end() : part.end() + 1]
            if last_group and follows and follows in "*+{":
                return False
        elif part["repeat"]:
            count += 1
            inside[-1] += 1
    return count <= 4


def literal(text: str) -> str:
    """A pattern for a text as it stands."""
    return "".join(f"\\{char}" if char in r"\^$.|?*+()[]{}/" else _shown(char) for char in text)


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
        left = f"[^{''.join(_in_class(char) for char in sorted(nexts))}]" if nexts else ANY
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


def inverse(pattern: str) -> str | None:
    """A pattern found in all texts in which one is not; None where that is more than a class of characters."""
    anchored = pattern.startswith("^") and pattern.endswith(("]+$", "]*$"))
    found = CLASS.fullmatch(pattern[1:-2] if anchored else pattern)
    if found is None:
        return None
    other = f"[{'' if found['no'] else '^'}{found['inside']}]"
    if not anchored:
        return f"^{other}*$"
    return f"^$|{other}" if pattern.endswith("+$") else other


def _shown(char: str) -> str:
    return char if char.isprintable() else f"\\x{ord(char):02x}" if ord(char) < 256 else char


def _in_class(char: str) -> str:
    return f"\\{char}" if char in r"\^]-[&~" else _shown(char)
