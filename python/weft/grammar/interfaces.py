"""What users write themselves, in Python: matchers for `Guide.matcher`, recognisers for `Guide.recognizer`."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class PythonMatcher(Protocol):
    """A matcher written in Python. What it raises ends its own request.

    It may also have `rollback(count) -> None`, which takes back the last tokens taken, `fork() -> PythonMatcher` and
    `reset() -> None`. Where it has none, weft takes all tokens again with the same object (`reset`) or another of the
    factory's: dearer with each token, and right only for a matcher that answers the same tokens alike.

    And it may have `error() -> str` (the text for what it raised), and `forced(capacity) -> list[int]`: at most so many
    tokens that spell what must follow whatever is sampled, with the state unchanged; they become drafts.
    """

    def accept(self, token: int) -> bool:
        """Take a token; False refuses it and leaves the state as it was."""

    def fill(self, row: NDArray[np.int32]) -> object:
        """Set bit t % 32 of word t // 32 for every token t that may follow; `row` comes zeroed. False: all
        may.
        """

    def is_terminated(self) -> bool:
        """Whether an end token was taken; after it the row has end tokens alone, and `accept` refuses all. Asked after
        each change of the state."""


class Recognizer(Protocol):
    """A stack of states; the interface of AICI's recognisers. What it raises ends its own request.

    It may also have `try_push_byte(byte) -> bool`, which pushes a byte if it is allowed; `trie_finished() -> None`,
    called after each mask; `fork() -> Recognizer`; and `collapse() -> None`, called when a token was taken: no more
    than the state on top has to be kept. A recogniser with `collapse` is made anew, and gets all bytes again, where
    tokens are taken back; one without pops them.
    """

    def push_byte(self, byte: int) -> None:
        """Push a byte, 0 to 255, that is allowed."""

    def pop_bytes(self, count: int) -> None:
        """Take back the last bytes."""

    def byte_allowed(self, byte: int) -> bool:
        """Whether a byte may follow."""

    def special_allowed(self, token: int) -> bool:
        """Whether an end token, by its id, may follow: the text may end here."""
