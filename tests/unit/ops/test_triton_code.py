"""The Triton kernels' code, as the operations launch them, compiled without a GPU: of real models' shapes and 16 bits
nothing spills."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from support.kernels.interpreter import needs_triton
from support.kernels.launches import Launch, launches

SHARED_MEMORY = 99 * 1024  # what the smallest GPU of these capabilities has for a program
KERNELS = {
    *("linear_kernel", "attend_few_kernel", "attend_kernel", "turn_write_kernel", "silu_mul_kernel"),
    *("embed_kernel", "norm_kernel", "join_norms_kernel", "take_kernel"),
}
SHAPES = {
    # hidden, inner, heads, kv_heads, head_dim, norms of heads, biases
    "llama 8b": (4096, 14336, 32, 8, 128, False, False),
    "qwen 7b": (3584, 18944, 28, 4, 128, True, True),
    "135m": (576, 1536, 9, 3, 64, False, False),
    "odd": (320, 584, 6, 3, 80, True, True),
    "gemma": (2048, 8192, 8, 1, 256, True, False),
}

pytestmark = [needs_triton, pytest.mark.slow]


def layer(shape: str, dtype: torch.dtype, rows: int, width: int) -> list[Callable[[], Any]]:
    """The operations of a layer over rows of `width` new tokens, and those around it."""
    from weft.ops import attention_triton, linear_triton, rows_triton, silu_mul_triton

    hidden, inner, heads, kv_heads, dim, has_norms, has_bias = SHAPES[shape]
    count = rows * width

    def tensor(*sizes: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device="cuda")

    def linear(outputs: int, inputs: int, normed: bool, swiglu: bool = False) -> Callable[[], None]:
        made = outputs // 2 if swiglu else outputs
        bias, norm = (tensor(outputs) if has_bias else None), (tensor(inputs) if normed else None)
        residual = None if normed else tensor(count, made)
        return lambda: linear_triton.linear(
            tensor(count, inputs),
            tensor(outputs, inputs),
            bias,
            norm,
            1e-5,
            residual,
            swiglu,
            tensor(count, made),
        )

    def attend(window: int = 0, sinks: int = 0) -> None:
        wide = (heads + 2 * kv_heads) * dim
        norm = tensor(dim) if has_norms else None
        base = tensor(rows, dtype=torch.int64)
        attention_triton.attend(
            tensor(count, wide), tensor(99, 16, 2, kv_heads, dim), tensor(rows, 512, dtype=torch.int32), base, base,
            None, width, 1, True, tensor(4096, dim // 2, 2, dtype=torch.float32), norm, norm, 1e-5, heads, dim**-0.5,
            window, sinks, tensor(count, heads * dim),
        )  # fmt: skip

    tokens = tensor(count, dtype=torch.int64)
    both, x, norm = tensor(count, 2 * hidden), tensor(count, hidden), tensor(hidden)
    work: list[Callable[[], Any]] = [
        attend,
        lambda: attend(1000, 4),
        lambda: rows_triton.embed(tensor(999, hidden), tokens, x),
        lambda: rows_triton.norm(x, norm, 1e-5, x),
        lambda: rows_triton.join_norms(tensor(999, hidden), tokens, norm, 1e-5, x, norm, 1e-5, both),
        lambda: rows_triton.take_rows(x.view(rows, width, -1), tokens[:rows], tensor(rows, hidden)),
        lambda: silu_mul_triton.silu_mul(tensor(count, 2 * inner), tensor(count, inner)),
    ]
    if count <= 16:
        work += [
            linear((heads + 2 * kv_heads) * dim, hidden, True),
            linear(hidden, heads * dim, False),
            linear(2 * inner, hidden, True, swiglu=True),
            linear(hidden, inner, False),
        ]
    return work


def launched(shape: str, dtype: torch.dtype, capability: int) -> Iterator[Launch]:
    with launches((capability // 10, capability % 10)) as found:
        for rows, width in ((2, 4), (2, 100)):
            for operation in layer(shape, dtype, rows, width):
                operation()
    seen: set[str] = set()
    for launch in found:
        constants = {k: v for k, v in launch.arguments.items() if not isinstance(v, torch.Tensor)}
        key = f"{launch.name} {constants}"
        if key not in seen:
            seen.add(key)
            yield launch


@pytest.mark.parametrize(
    ("shape", "dtype", "capability"),
    [
        ("llama 8b", torch.bfloat16, 90),
        ("qwen 7b", torch.bfloat16, 90),
        ("135m", torch.float16, 80),
        ("odd", torch.bfloat16, 100),
        ("gemma", torch.bfloat16, 90),
        ("135m", torch.float32, 90),
        ("llama 8b", torch.float32, 80),
    ],
)
def test_kernels_compile(shape: str, dtype: torch.dtype, capability: int) -> None:
    found = list(launched(shape, dtype, capability))
    assert {launch.name for launch in found} == KERNELS
    for launch in found:
        code = launch.compile(capability)
        assert code.shared <= SHARED_MEMORY, f"{launch.name} takes {code.shared} bytes of shared memory"
        if dtype is not torch.float32:  # which no GPU multiplies fast anyway
            assert code.stack == code.spills == 0, (
                f"{launch.name}: {code.registers} registers, {code.spills} spills"
            )
        if launch.name in ("linear_kernel", "attend_few_kernel"):
            assert "LDGSTS" in code.instructions, f"{launch.name} does not load ahead"
        if capability >= 90 and launch.name != "silu_mul_kernel":
            assert "ACQBULK" in code.instructions, f"{launch.name} does not wait for the kernel before it"
            assert "PREEXIT" in code.instructions, f"{launch.name} does not let the next kernel start"


def test_kernels_cover_the_modules() -> None:
    from weft.ops import attend_few_triton, attend_long_triton, linear_triton, rows_triton, silu_mul_triton

    modules = (attend_few_triton, attend_long_triton, linear_triton, rows_triton, silu_mul_triton)
    assert {name for module in modules for name in vars(module) if name.endswith("_kernel")} == KERNELS
