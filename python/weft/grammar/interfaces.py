"""The classes that users write in Python: matchers for `Guide.matcher`, recognizers for `Guide.recognizer`."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class PythonMatcher(Protocol):
    """A matcher written in Python. An exception that it raises ends its own request.

    It may also have these methods:

    - `rollback(count) -> None` undoes the last `count` accepted tokens.
    - `fork() -> PythonMatcher` returns an independent copy.
    - `reset() -> None` returns to the start.
    - `error() -> str` returns the message for an exception that it raised.
    - `forced(capacity) -> list[int]` returns at most `capacity` tokens that spell the forced text: the text that must
      follow whatever is sampled. It does not change the state. The tokens become drafts.

    Without `rollback`, weft replays the tokens that stay: into the same object after `reset`, or without `reset` into a
    new one from the factory. Without `fork`, weft replays all tokens into a new one. A replay costs more with each
    token, and works only if the matcher is deterministic.
    """

    def accept(self, token: int) -> bool:
        """Advance by a token. Return False to refuse it; the state must then be unchanged."""

    def fill(self, row: NDArray[np.int32]) -> object:
        """Fill the token mask: set bit t % 32 of word t // 32 for every token t that may follow. `row` arrives zeroed.
        Return False if all tokens may follow."""

    def is_terminated(self) -> bool:
        """Return whether an end token was accepted. From then on the mask has end tokens only, and `accept` refuses
        every token. Called after each change of state."""


class Recognizer(Protocol):
    """A byte-level automaton that keeps a stack of states, one per byte, with the interface of AICI's recognizers. An
    exception that it raises ends its own request.

    It may also have these methods:

    - `try_push_byte(byte) -> bool` pushes a byte if it is allowed, and returns whether it did.
    - `trie_finished() -> None` is called after each mask.
    - `fork() -> Recognizer` returns an independent copy.
    - `collapse() -> None` is called after each accepted token but an end token. From then on only the top state is
      needed.

    To roll tokens back, weft pops their bytes if the recognizer has no `collapse`. Otherwise it makes a new recognizer
    and pushes the remaining bytes again. Without `fork` it makes a copy in the same way.
    """

    def push_byte(self, byte: int) -> None:
        """Push a byte, 0 to 255, that is allowed."""

    def pop_bytes(self, count: int) -> None:
        """Remove the states of the last `count` bytes."""

    def byte_allowed(self, byte: int) -> bool:
        """Return whether a byte may follow."""

    def special_allowed(self, token: int) -> bool:
        """Return whether the text may end here with this end token, given by its id."""
