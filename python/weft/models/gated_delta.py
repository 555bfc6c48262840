"""The gated delta rule of Qwen3-Next: a mixer that keeps a state of fixed size instead of keys and values.

It is five operations: a product, a short convolution, the recurrence with its gates, a norm with a gate, and a product.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.models.base import WeightSource
from weft.models.config import ModelConfig
from weft.models.layers import LayerViews
from weft.models.memory import Convolution, Decay, LayerMemory, Recurrence, State
from weft.models.residual import Residual
from weft.ops.attention import Rows
from weft.ops.gates import gated_norm
from weft.ops.linear import Linear, Norm
from weft.ops.quantized import Matrix
from weft.ops.recurrence import DeltaGates, convolve, recur


def delta_memory(
    num_heads: int, num_key_heads: int, key_size: int, value_size: int, taps: int
) -> LayerMemory:
    """The memory of a layer with `GatedDelta`. `num_heads` are those of values. `taps` are the convolution's."""
    recurrence = Recurrence(num_heads, num_key_heads, key_size, value_size, Decay.HEAD, is_delta=True)
    channels = 2 * num_key_heads * key_size + num_heads * value_size
    return LayerMemory(state=State((Convolution(channels, taps),), (recurrence,)))


class GatedDelta:
    """A mixer with the gated delta rule, whose sizes are those of `memory` (`delta_memory`).

    projections: the weights [..., hidden size] of queries, keys, values, gates of the output, betas and decays, with
        heads in order.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSource,
        prefix: str,
        memory: LayerMemory,
        projections: Sequence[Matrix],
    ) -> None:
        assert memory.state is not None
        (convolution,), (recurrence,) = memory.state.convolutions, memory.state.recurrences
        self.recurrence = recurrence
        heads, value_size = recurrence.num_heads, recurrence.value_size
        keys, values = recurrence.num_key_heads * recurrence.key_size, heads * value_size
        self.channels = [keys, keys, values]
        self.parts = [sum(self.channels), values, heads, heads]
        self.input = Linear(projections)
        taken = weights.take(f"{prefix}conv1d.weight", convolution.channels, 1, convolution.taps)
        # The kernel reads the weights of adjacent channels together.
        self.convolution = taken.squeeze(1).float().t().contiguous().t()
        rates = weights.take_float(f"{prefix}A_log", heads)
        self.gates = DeltaGates(
            rates if rates.is_meta else rates.exp(),  # torch would import its compiler for it
            weights.take_float(f"{prefix}dt_bias", heads),
        )
        self.norm = Norm(weights.take(f"{prefix}norm.weight", value_size), config.rms_norm_eps)
        self.output = Linear(
            weights.take_matrix(f"{prefix}out_proj.weight", config.hidden_size, values),
            scale=config.residual_scale,
        )

    def add_to_(
        self, stream: Residual, before: Norm | None, after: Norm | None, rows: Rows, memory: LayerViews
    ) -> None:
        """See `Mixer`."""
        assert memory.states is not None
        states, size = memory.states, self.recurrence
        mixed, gate, beta, decay = stream.read(self.input, before).split(self.parts, 1)
        convolved = convolve(mixed, self.convolution, None, states.convolutions[0], rows, True)
        q, k, v = convolved.split(self.channels, 1)
        q, k = (x.unflatten(1, (size.num_key_heads, size.key_size)) for x in (q, k))
        v = v.unflatten(1, (size.num_heads, size.value_size))
        out = recur(q, k, v, decay, beta, states.recurrences[0], rows, gates=self.gates)
        stream.add(self.output, gated_norm(out, gate, self.norm, stream.live), after)
