"""Compares weft's gated delta rule and convolution on the CPU with transformers' implementations in torch.

    python benchmarks/recurrence.py [--threads 1] [--rounds 15] [--out benchmarks/results]

The shapes are those of a layer of Qwen3-Next: 32 heads of values, 16 of keys, states of 128 x 128, and a convolution of
8,192 channels and 4 taps, all in float32. A turn computes 12 layers, so that states come from memory. A step verifies T
- 1 drafts, after it has applied half of the drafts of the step before. transformers only computes T tokens: it can't
undo a state. A prompt has 512 tokens; transformers computes it in chunks.

Results are compared before timing. Times are microseconds of processor time of a layer, medians over rounds that
alternate, and `ratio` is transformers' ÷ weft's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from torch.nn import functional as F
from transformers.models.qwen3_next.modeling_qwen3_next import (
    causal_conv1d_fn,
    causal_conv1d_update,
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from weft.models.memory import Convolution, LayerMemory, Recurrence, State
from weft.models.states import States
from weft.ops.attention import Rows
from weft.ops.recurrence import convolve, recur
from weft_bench.cli.app import OutOption, finish, measured, script
from weft_bench.report import Report

LAYERS, BATCHES, WIDTHS, PROMPT = 12, (1, 4), (1, 4, 8), 512
RECURRENCE = Recurrence(32, 16, 128, 128, is_delta=True)
CONVOLUTION = Convolution(8192, 4)
MEMORY = LayerMemory(state=State((CONVOLUTION,), (RECURRENCE,)))


@dataclass
class Inputs:
    """The inputs of a call of all layers: `batch` rows of `width` tokens."""

    batch: int
    width: int

    def __post_init__(self) -> None:
        num_tokens, r = self.batch * self.width, RECURRENCE
        self.q, self.k = (
            F.normalize(torch.randn(num_tokens, r.num_key_heads, r.key_size), dim=2) for _ in range(2)
        )
        self.v = torch.randn(num_tokens, r.num_heads, r.value_size)
        self.log_decay, self.beta = -torch.rand(num_tokens, r.num_heads), torch.rand(num_tokens, r.num_heads)
        self.decay = self.log_decay.exp()
        self.x = torch.randn(num_tokens, CONVOLUTION.channels)
        self.weight = torch.randn(CONVOLUTION.taps, CONVOLUTION.channels).t()
        # As transformers has them.
        self.batched = [x.unflatten(0, (self.batch, self.width)) for x in (self.q, self.k, self.v)]
        self.gates = [x.unflatten(0, (self.batch, self.width)) for x in (self.log_decay, self.beta)]
        self.channels = self.x.unflatten(0, (self.batch, self.width)).transpose(1, 2).contiguous()
        self.channel_weight = self.weight.contiguous()


class OfWeft:
    """The states of all layers by slot, and weft's operations on them. The first position of a prompt is 0."""

    def __init__(self, inputs: Inputs, is_prompt: bool) -> None:
        max_drafts = 0 if is_prompt else inputs.width - 1
        self.inputs, self.scale = inputs, RECURRENCE.key_size**-0.5
        self.states = States([MEMORY] * LAYERS, inputs.batch, 0, max_drafts, False, "cpu")
        self.states.storage.zero_()
        self.states.drafts.zero_()
        slots, table = torch.arange(inputs.batch), torch.zeros(inputs.batch, 1, dtype=torch.int32)
        base = torch.full((inputs.batch,), 0 if is_prompt else 100)
        num_speculative = 0 if is_prompt else inputs.batch
        self.rows = Rows(table, base, inputs.width, states=self.states.rows(slots, num_speculative))

    def owe(self, count: int) -> None:
        """Let the next step apply `count` drafts first."""
        self.states.owed.fill_(count)

    def recur(self) -> Tensor:
        x = self.inputs
        return [
            recur(x.q, x.k, x.v, x.decay, x.beta, layer.recurrences[0], self.rows)
            for layer in self.states.layers
            if layer is not None
        ][-1] * self.scale

    def convolve(self) -> Tensor:
        return [
            convolve(self.inputs.x, self.inputs.weight, None, layer.convolutions[0], self.rows, True)
            for layer in self.states.layers
            if layer is not None
        ][-1]


class OfTransformers:
    """The states of all layers as transformers' cache has them, and its operations on them."""

    def __init__(self, inputs: Inputs, is_prompt: bool) -> None:
        self.inputs, self.is_prompt = inputs, is_prompt
        self.states = [
            torch.zeros(inputs.batch, RECURRENCE.num_heads, RECURRENCE.key_size, RECURRENCE.value_size)
            for _ in range(LAYERS)
        ]
        self.windows = [
            torch.zeros(inputs.batch, CONVOLUTION.channels, CONVOLUTION.taps) for _ in range(LAYERS)
        ]

    def recur(self) -> Tensor:
        x, rule = self.inputs, torch_recurrent_gated_delta_rule
        if self.is_prompt:
            rule = torch_chunk_gated_delta_rule
        for state in self.states:
            before = None if self.is_prompt else state
            out, after = rule(*x.batched, *x.gates, initial_state=before, output_final_state=True)
            state.copy_(after)
        return out.flatten(0, 1)

    def convolve(self) -> Tensor:
        x = self.inputs
        for window in self.windows:
            if self.is_prompt:
                out = causal_conv1d_fn(x.channels, x.channel_weight, None, activation="silu")
            else:
                out = causal_conv1d_update(x.channels, window, x.channel_weight, None, "silu")
        return out.transpose(1, 2).flatten(0, 1)


def times(ours: Callable[[], Tensor], theirs: Callable[[], Tensor], rounds: int) -> tuple[float, float]:
    """The median microseconds of processor time of a layer."""
    timings: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for run, seconds in zip((ours, theirs), timings, strict=True):
            begin = time.process_time()
            run()
            if number:
                seconds.append(time.process_time() - begin)
    return 1e6 * median(timings[0]) / LAYERS, 1e6 * median(timings[1]) / LAYERS


def rows_of(batch: int, width: int, is_prompt: bool, rounds: int) -> list[dict[str, Any]]:
    """Return the rows of the recurrence and of the convolution."""
    inputs = Inputs(batch, width)
    ours, theirs = OfWeft(inputs, is_prompt), OfTransformers(inputs, is_prompt)
    for name in ("recur", "convolve"):  # both begin with zeros
        torch.testing.assert_close(getattr(ours, name)(), getattr(theirs, name)(), rtol=1e-3, atol=1e-4)
    ours.owe(0 if is_prompt else width // 2)
    rows = []
    for name, what in (("recur", "gated delta rule"), ("convolve", "convolution")):
        weft, transformers = times(getattr(ours, name), getattr(theirs, name), 3 if is_prompt else rounds)
        rows.append(
            {
                "operation": what,
                "kind": "prompt" if is_prompt else "step",
                "batch": batch,
                "tokens": width,
                "weft_us": round(weft, 1),
                "transformers_us": round(transformers, 1),
                "ratio": round(transformers / weft, 2),
            }
        )
    return rows


@torch.inference_mode()
def run(threads: int, rounds: int) -> Report:
    """Return two rows for each kind of call."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    try:
        rows = [row for batch in BATCHES for width in WIDTHS for row in rows_of(batch, width, False, rounds)]
        rows += rows_of(1, PROMPT, True, rounds)
    finally:
        torch.set_num_threads(before)
    return Report("recurrence", rows, {"threads": threads, "layers": LAYERS, "rounds": rounds})


def main(
    threads: Annotated[int, typer.Option(min=1)] = 1,
    rounds: Annotated[int, typer.Option(min=1)] = 15,
    out: OutOption = None,
) -> None:
    """Compare weft's gated delta rule and convolution with transformers' in torch."""
    finish(measured(out, lambda: run(threads, rounds)), out)


if __name__ == "__main__":
    script(main)
