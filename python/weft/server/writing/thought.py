"""How many tokens of an answer are its reasoning."""

from __future__ import annotations

from collections.abc import Iterable


def tokens_through(pieces: Iterable[bytes], text: str) -> int:
    """How many tokens, whose bytes are `pieces`, reach to the end of `text`, which begins somewhere in them. It is all
    where it is not in them, as where a tokenizer writes text that its tokens do not hold.
    """
    tokens = list(pieces)
    if not text:
        return 0
    wanted = text.encode()
    begin = b"".join(tokens).find(wanted)
    if begin < 0:
        return len(tokens)
    end, reached = begin + len(wanted), 0
    for count, piece in enumerate(tokens):
        if reached >= end:
            return count
        reached += len(piece)
    return len(tokens)
