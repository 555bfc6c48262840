"""Texts for tests of tokenizers."""

from __future__ import annotations

import random

CORPUS = [
    "the cat sat on the mat, and the dog didn't",
    "Hello world, it's 12345 and 3.1415",
    "naïve café — Grüße ☃ 日本語 中文 한국어",
    '    def f(x): return {"a": [1, None]}',
    "two  spaces   and\ttabs",
] * 20
WORDS = [
    *["the", "and", "Hello", "world", "don't", "I'm", "we'll", "return", "def"],
    *("https://a.b/c?d=e", "über", "naïve", "12345", "3,141.59", '{"key": [1, 2.5e-3]}', "e\u0301", "½", "№"),
    *("日本語", "한국어", "العربية", "👩\u200d👩\u200d👧", "🇩🇪", "☃️", "\U0001d518\U0001d52b"),
    *("\xa0", "\u3000", "\u200b", "\x00\x7f", "▁", "x\ny", "\r\n\n", "\t"),
]


def texts(count: int = 200) -> list[str]:
    """Random texts that do not begin with a space."""
    rng = random.Random(7)
    spaces = ["", " ", " ", "  ", "     "]
    parts = [
        [(rng.choice(WORDS), rng.choice(spaces)) for _ in range(rng.randint(1, 9))] for _ in range(count)
    ]
    return ["x" + "".join(word + space for word, space in pairs) for pairs in parts]
