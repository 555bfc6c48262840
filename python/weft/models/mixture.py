"""Mixtures of experts: a router chooses some MLPs for each token.

Shared experts serve each token. They are stored as experts after the routed ones, so that one operation computes all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from torch import Tensor

from weft.models.base import WeightSource
from weft.models.config import MixtureConfig, ModelConfig
from weft.models.residual import Residual
from weft.ops.experts import Experts
from weft.ops.linear import Linear, Norm
from weft.ops.routing import choose
from weft.ops.rows import copy_rows_

FUSED = ("experts.gate_up_proj", "experts.down_proj")
"""Names in a mixture: of one tensor with the gates and ups of all experts, and of one with their downs."""

Read = Callable[[int], Tensor]
"""Reads the matrix of an expert."""


class Mixture:
    """A mixture of experts.

    router: the product that gives the logits of the experts, with a shared gate one more.
    choice_bias: float32 [E], added to the scores for the choice only; or None.
    """

    def __init__(
        self, config: MixtureConfig, router: Linear, experts: Experts, choice_bias: Tensor | None = None
    ) -> None:
        self.config = config
        self.router = router
        self.experts = experts
        self.choice_bias = choice_bias

    def add_to_(
        self, stream: Residual, before: Norm | None, after: Norm | None, also: Tensor | None = None
    ) -> None:
        """See `FeedForward`."""
        assert before is not None and after is None
        logits = stream.read(self.router, before)
        chosen = choose(logits, self.config.choice, self.choice_bias, stream.x, before, stream.live)
        self.experts(*chosen, stream.live, out=stream.x, residual=stream.x)
        if also is not None:
            copy_rows_(also, stream.x, stream.live)


def load_mixture(config: ModelConfig, mixture: MixtureConfig, weights: WeightSource, prefix: str) -> Mixture:
    """Load a mixture. The checkpoint has a matrix for each projection of each expert, or one tensor for those of all
    experts (`FUSED`). `prefix` is that of the layer."""
    prefix = f"{prefix}{mixture.name}."
    hidden, count = config.hidden_size, mixture.num_experts
    router = [weights.take_matrix(f"{prefix}{mixture.router}.weight", count, hidden)]
    if mixture.shared_gate:
        router.append(weights.take_matrix(f"{prefix}{mixture.shared_gate}.weight", 1, hidden))
    bias = weights.take_float(f"{prefix}{mixture.choice_bias}", count) if mixture.choice_bias else None
    shared = _shared(config, mixture, weights, prefix)
    readers = (_fused if f"{prefix}{FUSED[0]}" in weights else _apart)(config, mixture, weights, prefix)
    gate, up, down = (Matrices(count, *parts) for parts in zip(readers, shared, strict=True))
    return Mixture(mixture, Linear(router), Experts(gate, up, down, config.activation), bias)


class Matrices(Sequence[Tensor]):
    """Matrices that are read one after another, each when it is needed: `count` by `read`, then those of `more`."""

    def __init__(self, count: int, read: Read, more: Sequence[Tensor] = ()) -> None:
        self.num_read, self.read, self.more = count, read, more

    def __len__(self) -> int:
        return self.num_read + len(self.more)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.read(index) if index < self.num_read else self.more[index - self.num_read]


def _apart(config: ModelConfig, mixture: MixtureConfig, weights: WeightSource, prefix: str) -> list[Read]:
    """Readers of the experts' gates, ups and downs, for a tensor for each matrix."""
    hidden, inner = config.hidden_size, mixture.intermediate_size

    def reader(name: str, shape: tuple[int, int]) -> Read:
        return lambda expert: weights.take_matrix(f"{prefix}experts.{expert}.{name}.weight", *shape)

    shapes = (inner, hidden), (inner, hidden), (hidden, inner)
    return [reader(name, shape) for name, shape in zip(mixture.projections, shapes, strict=True)]


def _fused(config: ModelConfig, mixture: MixtureConfig, weights: WeightSource, prefix: str) -> list[Read]:
    """Readers of the experts' gates, ups and downs, for tensors of all experts."""
    hidden, inner, count = config.hidden_size, mixture.intermediate_size, mixture.num_experts
    gate, up = weights.take_matrix(f"{prefix}{FUSED[0]}", count, 2 * inner, hidden).split(inner, 1)
    down = weights.take_matrix(f"{prefix}{FUSED[1]}", count, hidden, inner)
    return [gate.__getitem__, up.__getitem__, down.__getitem__]


def _shared(
    config: ModelConfig, mixture: MixtureConfig, weights: WeightSource, prefix: str
) -> list[list[Tensor]]:
    """The gates, ups and downs of the shared experts: parts, of an expert's size, of one wide MLP."""
    if not mixture.choice.num_shared:
        return [[], [], []]
    hidden, inner = config.hidden_size, mixture.intermediate_size
    wide = mixture.choice.num_shared * inner
    gate, up, down = (
        weights.take_matrix(f"{prefix}{mixture.shared}.{name}.weight", *shape)
        for name, shape in zip(
            ("gate_proj", "up_proj", "down_proj"),
            ((wide, hidden), (wide, hidden), (hidden, wide)),
            strict=True,
        )
    )
    return [list(gate.split(inner)), list(up.split(inner)), list(down.split(inner, 1))]
