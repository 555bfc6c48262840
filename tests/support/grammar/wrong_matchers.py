"""Matchers that break their promises, which tests of promises must find."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from support.grammar.grammars import CountdownMatcher


class ForgetsToForget(CountdownMatcher):
    """A rollback that takes back one token too few, where it takes back three or more."""

    def rollback(self, count: int) -> None:
        super().rollback(count - (count >= 3))


class SharesItsFork(CountdownMatcher):
    """A fork that follows what it was forked from."""

    def fork(self) -> SharesItsFork:
        copy = SharesItsFork(self.length, self.letters)
        copy.taken = self.taken
        return copy


class ChangesItsMask(CountdownMatcher):
    """A mask that is another one when it is asked for again."""

    asked = False

    def fill(self, row: NDArray[np.int32]) -> None:
        if not self.asked or len(self.taken) < 2:
            super().fill(row)
        self.asked = True


WRONG = [ForgetsToForget, SharesItsFork, ChangesItsMask]
