"""Mixtures of experts: a router chooses some MLPs for each token.

Shared experts serve each token. They are stored as experts after the routed ones, so that one operation computes all.
If they are quantised in another way, they are one wide expert of their own, and there are two operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.models.base import WeightSource
from weft.models.config import MixtureConfig, ModelConfig
from weft.models.matrices import Matrices
from weft.models.residual import Residual
from weft.ops.experts import Experts
from weft.ops.formats import Activations
from weft.ops.linear import Linear, Norm
from weft.ops.quantized import Matrix
from weft.ops.routing import choose
from weft.ops.rows import copy_rows_

FUSED = ("experts.gate_up_proj", "experts.down_proj")
"""The names of tensors of all experts, as transformers has them: of gates and ups, and of downs."""

Each = Tensor | Sequence[Matrix]
"""The matrices of experts."""
Projections = tuple[Each, Each, Each]
"""The gates, ups and downs of all experts, as `Experts` takes them."""


class Mixture:
    """A mixture of experts.

    router: the product that gives the logits of the experts, with a shared gate one more.
    choice_bias: float32 [E], added to the scores for the choice only; or None.
    shared: the shared experts, if they are not among `experts`.
    """

    def __init__(
        self,
        config: MixtureConfig,
        router: Linear,
        experts: Experts,
        choice_bias: Tensor | None = None,
        shared: Experts | None = None,
    ) -> None:
        self.config = config
        self.router = router
        self.experts = experts
        self.choice_bias = choice_bias
        self.shared = shared

    def add_to_(
        self, stream: Residual, before: Norm | None, after: Norm | None, also: Tensor | None = None
    ) -> None:
        """See `FeedForward`."""
        assert before is not None and after is None
        logits = stream.read(self.router, before)
        chosen = choose(logits, self.config.choice, self.choice_bias, stream.x, before, stream.live)
        self.experts(*chosen, stream.live, out=stream.x, residual=stream.x)
        if self.shared is not None:
            self.shared(*chosen, stream.live, out=stream.x, residual=stream.x)
        if also is not None:
            copy_rows_(also, stream.x, stream.live)


def load_mixture(config: ModelConfig, mixture: MixtureConfig, weights: WeightSource, prefix: str) -> Mixture:
    """Load a mixture. `prefix` is that of the layer."""
    prefix = f"{prefix}{mixture.name}."
    count = mixture.num_experts
    router = [weights.take_dense(f"{prefix}{mixture.router}.weight", count, config.hidden_size)]
    if mixture.shared_gate:
        router.append(weights.take_dense(f"{prefix}{mixture.shared_gate}.weight", 1, config.hidden_size))
    bias = weights.take_float(f"{prefix}{mixture.choice_bias}", count) if mixture.choice_bias else None
    if len(mixture.projections) == 2:
        routed = _fused(config, mixture, weights, prefix, mixture.projections)
    elif f"{prefix}{FUSED[0]}" in weights:
        routed = _fused(config, mixture, weights, prefix, FUSED)
    else:
        routed = separate_experts(config, mixture, weights, prefix)
    if not mixture.choice.num_shared:
        return make_mixture(config, mixture, make_router(router), routed, bias)
    shared = _take_shared(config, mixture, weights, prefix)
    (gate, gates), (up, ups), (down, downs) = map(_read_first, routed)
    if all(map(_fit, (gate, up, down), shared)):
        inner = mixture.intermediate_size
        shared_gates, shared_ups = shared[0].split(inner, 0), shared[1].split(inner, 0)
        projections = (
            _joined(gates, shared_gates),
            _joined(ups, shared_ups),
            _joined(downs, shared[2].split(inner, 1)),
        )
        return make_mixture(config, mixture, make_router(router), projections, bias)
    made = make_mixture(config, mixture, make_router(router), (gates, ups, downs), bias)
    # The weights of the shared experts are equal, so that of the first is the wide expert's.
    wide_gate, wide_up, wide_down = ([matrix] for matrix in shared)
    made.shared = Experts(wide_gate, wide_up, wide_down, config.activation, first=count)
    return made


def make_mixture(
    config: ModelConfig,
    mixture: MixtureConfig,
    router: Linear,
    projections: Projections,
    choice_bias: Tensor | None = None,
    biases: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
) -> Mixture:
    """Make a mixture of loaded parts. `biases` are those of the projections, [E, outputs] each."""
    gate, up, down = biases
    experts = Experts(*projections, config.activation, gate_bias=gate, up_bias=up, down_bias=down)
    return Mixture(mixture, router, experts, choice_bias)


def make_router(weight: Sequence[Tensor], bias: Tensor | None = None) -> Linear:
    """The product that gives a mixture's logits. Neither they nor its inputs are rounded, because that could change the
    choice: logits are float32, and no tiles multiply."""
    return Linear(weight, bias, out_dtype=torch.float32, activations=Activations.FLOAT32)


def separate_experts(
    config: ModelConfig, mixture: MixtureConfig, weights: WeightSource, prefix: str
) -> Projections:
    """The projections of the routed experts, stored as a matrix for each. `prefix` is that of the mixture."""
    hidden, inner = config.hidden_size, mixture.intermediate_size

    def matrices(name: str, *shape: int) -> Matrices:
        names = [f"{prefix}experts.{expert}.{name}.weight" for expert in range(mixture.num_experts)]
        return weights.take_in_order(names, *shape)

    gate, up, down = mixture.projections
    return matrices(gate, inner, hidden), matrices(up, inner, hidden), matrices(down, hidden, inner)


def _fused(
    config: ModelConfig, mixture: MixtureConfig, weights: WeightSource, prefix: str, names: Sequence[str]
) -> Projections:
    """The projections of the routed experts, stored as two tensors: gates and ups, and downs."""
    hidden, inner, count = config.hidden_size, mixture.intermediate_size, mixture.num_experts
    up, down = names
    both = weights.take_matrices(f"{prefix}{up}", count, 2 * inner, hidden)
    gates, ups = both.split(slice(inner), slice(inner, None))
    return gates, ups, weights.take_matrices(f"{prefix}{down}", count, hidden, inner)


def _take_shared(
    config: ModelConfig, mixture: MixtureConfig, weights: WeightSource, prefix: str
) -> tuple[Matrix, Matrix, Matrix]:
    """The projections of the shared experts: one wide MLP, of which each expert is a part."""
    hidden = config.hidden_size
    wide = mixture.choice.num_shared * mixture.intermediate_size
    gate, up, down = (
        weights.take_in_order([f"{prefix}{mixture.shared}.{name}.weight"], *shape)[0]
        for name, shape in zip(
            ("gate_proj", "up_proj", "down_proj"),
            ((wide, hidden), (wide, hidden), (hidden, wide)),
            strict=True,
        )
    )
    return gate, up, down


def _read_first(matrices: Each) -> tuple[Matrix, Matrices]:
    """The first of some matrices, and all of them without reading it again."""
    first: Matrix = matrices[0]
    return first, Matrices(len(matrices), lambda index: matrices[index] if index else first)


def _fit(expert: Matrix, wide: Matrix) -> bool:
    """Whether parts of the matrix of shared experts may be stored with an expert's matrix."""
    if isinstance(expert, Tensor) or isinstance(wide, Tensor):
        return isinstance(expert, Tensor) and isinstance(wide, Tensor)
    inputs = expert.num_inputs
    return expert.format is wide.format and (
        inputs == wide.num_inputs or inputs % expert.format.block.inputs == 0
    )


def _joined(first: Each, second: Each) -> Matrices:
    """The matrices of two sequences, one after the other."""
    count = len(first)
    return Matrices(count + len(second), lambda i: first[i] if i < count else second[i - count])
