"""The classes that users write in Python: matchers for `Guide.matcher`, recognizers for `Guide.recognizer`."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class PythonMatcher(Protocol):
    """A matcher written in Python. An exception that it raises ends its own request.

    It may also have `rollback(count) -> None`, which takes back the last accepted tokens, `fork() -> PythonMatcher`
    and `reset() -> None`. Without them weft replays all tokens, in the same object (after `reset`) or in another one
    from the factory. That costs more with each token, and is right only for a matcher that gives the same answers for
    the same tokens.

    It may have `error() -> str`, the text for what it raised. And it may have `forced(capacity) -> list[int]`: at
    most `capacity` tokens that spell the text that must follow whatever is sampled, without a change of state. They
    become drafts.
    """

    def accept(self, token: int) -> bool:
        """Take a token. Returning False refuses it and leaves the state unchanged."""

    def fill(self, row: NDArray[np.int32]) -> object:
        """Set bit t % 32 of word t // 32 for every token t that may follow; `row` arrives zeroed. Returning False
        means that all tokens may follow."""

    def is_terminated(self) -> bool:
        """Return whether an end token was accepted. After that the row has end tokens only, and `accept` refuses all.
        Called after each change of the state."""


class Recognizer(Protocol):
    """A stack of states over bytes, with the interface of AICI's recognizers. An exception that it raises ends its
    own request.

    It may also have these methods:

    - `try_push_byte(byte) -> bool` pushes a byte if it is allowed.
    - `trie_finished() -> None` is called after each mask.
    - `fork() -> Recognizer` returns an independent copy.
    - `collapse() -> None` is called after each accepted token. From then on only the top state is needed.

    Where tokens are taken back, a recognizer without `collapse` pops their bytes. One with `collapse` is made again
    and gets all bytes.
    """

    def push_byte(self, byte: int) -> None:
        """Push a byte, 0 to 255, that is allowed."""

    def pop_bytes(self, count: int) -> None:
        """Remove the last bytes."""

    def byte_allowed(self, byte: int) -> bool:
        """Return whether a byte may follow."""

    def special_allowed(self, token: int) -> bool:
        """Return whether an end token, given by its id, may follow: whether the text may end here."""
