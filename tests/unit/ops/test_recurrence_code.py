"""The Triton kernels of layers with a state, compiled without a GPU in the shapes of real models: nothing spills, and
nothing is read too early."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from support.kernels.interpreter import needs_triton
from support.kernels.launches import Launch, launches
from support.kernels.sass import LETS_START, before_wait, instructions
from weft.models.memory import Decay, Recurrence

SHARED_MEMORY = 48 * 1024
KERNELS = {
    *("recur_kernel", "keep_drafts_kernel", "settle_recurrence_kernel"),
    *("convolve_kernel", "convolve_prompts_kernel", "settle_window_kernel", "gated_norm_kernel"),
}
MODELS = {
    "qwen3-next": (Recurrence(32, 16, 128, 128, Decay.HEAD, is_delta=True), 8192, 4),
    "kimi linear": (Recurrence(32, 32, 128, 128, Decay.KEY, is_delta=True), 4096, 4),
    "mamba 2": (Recurrence(128, 8, 128, 64, Decay.HEAD), 10240, 4),
    "mamba 1": (Recurrence(1, 1, 16, 8192, Decay.ELEMENT), 8192, 4),
    "large heads": (Recurrence(8, 8, 256, 256, Decay.HEAD, is_delta=True), 2048, 3),
}

pytestmark = [needs_triton, pytest.mark.slow]


def launched(
    model: str, dtype: torch.dtype, capability: int, ragged: bool, has_gates: bool = False
) -> Iterator[Launch]:
    from weft.ops import gates_triton, recurrence_triton

    r, channels, taps = MODELS[model]
    slots, drafts, speculative, parts, tokens = 65, 7, 8, 4, 512

    def tensor(*sizes: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.empty(sizes, dtype=dtype, device="cuda")

    def floats(*sizes: int) -> Tensor:
        return tensor(*sizes, dtype=torch.float32)

    def integers(count: int) -> Tensor:
        return tensor(count, dtype=torch.int64)

    with launches((capability // 10, capability % 10)) as recorded:
        rows = speculative + (parts if ragged else 0)
        num_tokens = tokens if ragged else speculative * (drafts + 1)
        decay = {Decay.HEAD: (r.num_heads,), Decay.KEY: (r.num_heads, r.key_size)}.get(
            r.decay, (r.num_heads, r.value_size)
        )
        rates = floats(r.num_heads, r.key_size, r.value_size) if r.decay is Decay.ELEMENT else None
        of_drafts = floats(slots, drafts, 3 * r.num_heads * (r.key_size + r.value_size))
        place = (
            integers(rows), None, integers(rows + 1) if ragged else None, tokens if ragged else drafts + 1, 0,
            integers(rows), integers(slots), integers(slots), integers(slots), speculative,
            integers(rows) if ragged else None,
        )  # fmt: skip
        gates = (floats(r.num_heads), floats(r.num_heads)) if has_gates else (None, None)
        keys, values = r.num_key_heads * r.key_size, r.num_heads * r.value_size
        # The inputs are slices of one projection, and the storage of a layer is a slice of a row.
        qkv = tensor(num_tokens, 2 * keys + values)
        cache = [
            floats(slots, 3 * values * r.key_size)[:, : values * r.key_size].unflatten(
                1, (r.num_heads, -1, r.key_size, 16)
            ),
            *(
                of_drafts[..., : torch.Size(shape).numel()].unflatten(2, shape)
                for shape in (decay, (r.num_key_heads, r.key_size), (r.num_heads, r.value_size))
            ),
        ]
        recurrence_triton.recur(
            qkv[:, :keys].unflatten(1, (-1, r.key_size)), qkv[:, keys : 2 * keys].unflatten(1, (-1, r.key_size)),
            qkv[:, 2 * keys :].unflatten(1, (-1, r.value_size)), floats(num_tokens, *decay),
            floats(num_tokens, r.num_heads) if r.is_delta else None, rates, *gates, *cache, *place,
            tensor(num_tokens, r.num_heads, r.value_size),
        )  # fmt: skip
        moves = [integers(3) for _ in range(3)]
        recurrence_triton.settle_recurrence(*cache, rates, integers(slots), *moves)
        windows = (
            floats(slots, 9 * channels)[:, : (taps - 1) * channels].unflatten(1, (taps - 1, channels)),
            of_drafts[..., :channels],
        )
        recurrence_triton.convolve(
            tensor(num_tokens, channels), tensor(taps, channels).t(), tensor(channels) if ragged else None, *windows,
            *place, True, tensor(num_tokens, channels),
        )  # fmt: skip
        recurrence_triton.settle_window(*windows, integers(slots), *moves)
        gates_triton.gated_norm(
            tensor(num_tokens, r.num_heads, r.value_size), tensor(num_tokens, values), tensor(r.value_size), 1e-6,
            tensor(num_tokens, values), integers(1) if ragged else None,
        )  # fmt: skip
    yield from recorded


@pytest.mark.parametrize(
    ("model", "dtype", "capability"),
    [
        ("qwen3-next", torch.bfloat16, 90),
        ("qwen3-next", torch.bfloat16, 80),
        ("kimi linear", torch.bfloat16, 100),
        ("mamba 2", torch.float16, 90),
        ("mamba 1", torch.bfloat16, 90),
        ("large heads", torch.float32, 90),
    ],
)
def test_kernels_compile(model: str, dtype: torch.dtype, capability: int) -> None:
    names = set()
    for ragged, has_gates in product((True, False), {False, MODELS[model][0].is_delta}):
        for launch in launched(model, dtype, capability, ragged, has_gates):
            names.add(launch.name)
            code = launch.compile(capability)
            assert code.shared <= SHARED_MEMORY
            assert code.stack == code.spills == 0, f"{launch.name}: {code.registers} registers"
            if capability >= 90:
                assert LETS_START in instructions(code.instructions)
                assert before_wait(code.instructions) == []
    assert names == KERNELS


@pytest.mark.parametrize("model", MODELS)
def test_the_arithmetic_of_a_state_is_the_same_everywhere(model: str) -> None:
    """A state is decayed and updated by a product and a fused product and sum, in calls and when a state is settled."""
    for launch in launched(model, torch.bfloat16, 90, ragged=True):
        if launch.name in ("recur_kernel", "settle_recurrence_kernel"):
            assert launch.options["enable_fp_fusion"] is False


def test_kernels_cover_the_modules() -> None:
    from weft.ops import gates_triton, recurrence_triton

    modules = (gates_triton, recurrence_triton)
    assert {name for module in modules for name in vars(module) if name.endswith("_kernel")} == KERNELS
