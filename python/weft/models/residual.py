"""The residual stream of a decoder's forward: the rows that layers read and add to."""

from __future__ import annotations

from torch import Tensor

from weft.ops.linear import Added, Linear, Norm, add_norm
from weft.ops.rows import copy_rows_


class Residual:
    """The residual stream `x` [N, H], with the first `live` rows (int64 [1]; None: all).

    A layer's part may have a norm after it (Gemma, OLMo 2). Its output then stays pending, and the next product that
    reads the stream adds it. So this norm is no operation of its own. While an output is pending, `x` lacks it.
    """

    def __init__(self, x: Tensor, live: Tensor | None) -> None:
        self.x = x
        self.live = live
        self._pending: tuple[Tensor, Norm] | None = None

    def read(self, product: Linear, norm: Norm | None) -> Tensor:
        """The product of the stream, after `norm` if given."""
        if self._pending is None:
            return product(self.x, norm, live=self.live)
        rows, after = self._pending
        total = self.x.new_empty(self.x.shape)
        out = product(self.x, norm, added=Added(rows, after, total), live=self.live)
        self.x, self._pending = total, None
        return out

    def add(self, product: Linear, rows: Tensor, after: Norm | None, also: Tensor | None = None) -> None:
        """Add the product of `rows` to the stream, after the norm `after` if given. `also` receives a copy of the
        stream. The stream is settled: a part has read it before it adds."""
        if after is None:
            product(rows, residual=self.x, out=self.x, also=also, live=self.live)
            return
        self.add_rows(product(rows, live=self.live), after, also)

    def add_rows(self, rows: Tensor, after: Norm, also: Tensor | None = None) -> None:
        """Add `rows` [N, H] to the stream, after the norm `after`. `also` receives a copy of the stream."""
        self._pending = rows, after
        if also is not None:
            copy_rows_(also, self.settle(), self.live)

    def settle(self) -> Tensor:
        """Add the output that is pending, if any. Returns the stream."""
        if self._pending is not None:
            rows, after = self._pending
            add_norm(self.x, rows, after, self.x, self.live)
            self._pending = None
        return self.x
