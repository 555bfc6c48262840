"""Synthetic vocabularies of any size."""

from __future__ import annotations

import random

from weft.grammar import Vocabulary


def synthetic_vocabulary(size: int) -> Vocabulary:
    """Return a vocabulary of all bytes, then made-up words, half of them after a space."""
    rng = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    tokens = [b"", *(bytes([byte]) for byte in range(256))]
    seen = set(tokens)
    while len(tokens) < size:
        length = rng.randint(2, 9)
        word = rng.choice(["", " "]) + "".join(
            letters[min(int(rng.expovariate(0.15)), 25)] for _ in range(length)
        )
        if word.encode() not in seen:
            seen.add(word.encode())
            tokens.append(word.encode())
    return Vocabulary.from_tokens(tokens, end_ids=[0])
