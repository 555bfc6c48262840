"""Names of cached pages for readers outside: 64 bits that say what text ends in a page, in any process and any run.

A page is looked up by its tokens, never by such a name.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

ROOT_HASH = 0
"""What stands for the parent of a text's first page."""


def page_hash(parent: int, tokens: Sequence[int], salt: int = 0) -> int:
    """The name of the page of `tokens` after the page named `parent`: the first 8 bytes, little-endian, of BLAKE2b over
    the parent's name (8 bytes), the salt (32 bytes, zeros for none; of a text's first page alone) and the tokens (8
    bytes each), all little-endian."""
    state = blake2b(parent.to_bytes(8, "little") + salt.to_bytes(32, "little"), digest_size=8)
    numbers = array("q", tokens)
    state.update(numbers.tobytes() if _IS_LITTLE else _swapped(numbers))
    return int.from_bytes(state.digest(), "little")


_IS_LITTLE = array("q", [1]).tobytes()[0] == 1


def _swapped(numbers: array[int]) -> bytes:
    numbers.byteswap()
    return numbers.tobytes()
