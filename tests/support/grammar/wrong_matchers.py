"""Matchers that break the contract. The contract's tests must notice each of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from support.grammar.grammars import CountdownMatcher


class ForgetsToForget(CountdownMatcher):
    """Its rollback of three or more tokens takes back one token too few."""

    def rollback(self, count: int) -> None:
        super().rollback(count - (count >= 3))


class SharesItsFork(CountdownMatcher):
    """Its fork follows the original."""

    def fork(self) -> SharesItsFork:
        copy = SharesItsFork(self.length, self.letters)
        copy.taken = self.taken
        return copy


class ChangesItsMask(CountdownMatcher):
    """Its mask changes when it is filled a second time."""

    asked = False

    def fill(self, row: NDArray[np.int32]) -> None:
        if not self.asked or len(self.taken) < 2:
            super().fill(row)
        self.asked = True


WRONG = [ForgetsToForget, SharesItsFork, ChangesItsMask]
