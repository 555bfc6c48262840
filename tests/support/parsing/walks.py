"""Answers that a guide lets through, found by chance: bytes that its masks permit, with a liking for markers."""

from __future__ import annotations

import random
import re

import numpy as np

from support.grammar.grammars import END, backend, new_row
from weft import Guide
from weft.grammar import Matcher

BYTES = slice(3, 259)
FREE = 100
"""Where so many bytes may come, the text is free."""
LITERALS = re.compile(r'"(?:begin|end|value|separator)": "((?:[^"\\]|\\.)*)"')
SNIPPETS = [
    "a",
    "Z",
    "7",
    " ",
    "\n",
    '"',
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "<",
    ">",
    "ß",
    "漢",
    "🙂",
    '"}',
    '"}}',
    "null",
]


def walk(guide: Guide, seed: int, max_bytes: int = 1500) -> tuple[str, bool]:
    """An answer, and whether it has ended by itself."""
    rng = random.Random(seed)
    matcher = backend().compile(guide).matcher()
    markers = [found.encode().decode("unicode_escape") for found in LITERALS.findall(guide.source)]
    wanted, text = b"", bytearray()
    while len(text) < max_bytes:
        permitted, may_end = _permitted(matcher)
        if may_end and (not permitted.size or rng.random() < 0.05 + len(text) / max_bytes):
            return text.decode(errors="replace"), True
        if not wanted or wanted[0] not in permitted:
            wanted = _wanted(rng, markers) if len(permitted) > FREE else b""
        ascii_bytes = permitted[permitted < 128]  # free text takes bytes that are no UTF-8, too
        choices = ascii_bytes if ascii_bytes.size else permitted
        byte = wanted[0] if wanted and wanted[0] in permitted else int(rng.choice(choices))
        wanted = wanted[1:]
        assert matcher.accept(BYTES.start + byte)
        text.append(byte)
    return text.decode(errors="replace"), False


def _permitted(matcher: Matcher) -> tuple[np.ndarray, bool]:
    """The bytes that may come, and whether the answer may end."""
    row = new_row()
    if not matcher.fill(row):
        return np.arange(256), True
    bits = np.unpackbits(np.asarray(row).view(np.uint8), bitorder="little")
    return np.flatnonzero(bits[BYTES]), bool(bits[END])


def _wanted(rng: random.Random, markers: list[str]) -> bytes:
    """What to write next, as long as it may come."""
    return (rng.choice(markers) if rng.random() < 0.5 else rng.choice(SNIPPETS)).encode()
