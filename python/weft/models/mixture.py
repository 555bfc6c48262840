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
    """Load a mixture with a matrix for each projection of each expert. `prefix` is that of the layer."""
    prefix = f"{prefix}{mixture.name}."
    hidden, inner, count = config.hidden_size, mixture.intermediate_size, mixture.num_experts
    router = [weights.take_matrix(f"{prefix}{mixture.router}.weight", count, hidden)]
    if mixture.shared_gate:
        router.append(weights.take_matrix(f"{prefix}{mixture.shared_gate}.weight", 1, hidden))
    bias = weights.take_float(f"{prefix}{mixture.choice_bias}", count) if mixture.choice_bias else None
    gate, up, down = mixture.projections
    shared = _shared(config, mixture, weights, prefix)

    def matrices(name: str, shape: tuple[int, int], extra: Sequence[Tensor]) -> Matrices:
        def read(expert: int) -> Tensor:
            if expert >= count:
                return extra[expert - count]
            return weights.take_matrix(f"{prefix}experts.{expert}.{name}.weight", *shape)

        return Matrices(count + len(extra), read)

    experts = Experts(
        matrices(gate, (inner, hidden), shared[0]),
        matrices(up, (inner, hidden), shared[1]),
        matrices(down, (hidden, inner), shared[2]),
        config.activation,
    )
    return Mixture(mixture, Linear(router), experts, bias)


class Matrices(Sequence[Tensor]):
    """Matrices that are read one after another, each when it is needed."""

    def __init__(self, count: int, read: Callable[[int], Tensor]) -> None:
        self.size, self.read = count, read

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(index, slice):
            return [self.read(i) for i in range(*index.indices(self.size))]
        if not 0 <= index < self.size:
            raise IndexError(index)
        return self.read(index)


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
