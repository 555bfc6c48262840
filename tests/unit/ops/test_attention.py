"""Paged attention against textbook attention: the CPU's way, and the Triton kernels through Triton's
interpreter.

Run as a script under TRITON_INTERPRET=1 this file checks the kernels and prints each case's largest error.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.errors import InterfaceError
from weft.models.config import Rope
from weft.ops import attention, attention_cpu
from weft.ops.lazy_triton import triton_kernels

has_triton = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not has_triton, reason="triton is not installed")


@dataclass(frozen=True)
class Case:
    """Rows with these lengths (new tokens included), reading `width` new tokens each."""

    lengths: tuple[int, ...]
    width: int
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    page: int = 16
    dtype: str = "float32"
    splits: int = 1
    norm: bool = False

    def __str__(self) -> str:
        return "-".join(
            map(str, (*self.lengths, f"t{self.width}", self.heads, self.kv_heads, self.dim, self.dtype))
        )


DECODE = (
    Case((1,), 1),
    Case((200,), 1, heads=6, kv_heads=3, dim=32, splits=4),
    Case((150, 7, 33), 4, splits=4),
    Case((64, 9, 70), 9, heads=8, kv_heads=1, splits=2),
    Case((40, 12), 2, dim=24, page=8, norm=True),
    Case((70, 300), 4, heads=4, kv_heads=4, dim=64, dtype="float16", splits=8, norm=True),
)
PREFILL = (
    Case((20,), 20),
    Case((70, 50), 17, heads=8, kv_heads=2, dim=32),
    Case((50,), 17, heads=2, kv_heads=1, dtype="float16", norm=True),
)


class Inputs:
    """Random q, k, v of a case, its pages shuffled; memory that nothing wrote is NaN."""

    def __init__(self, case: Case) -> None:
        generator = torch.Generator().manual_seed(3)
        self.case = case
        batch, dtype = len(case.lengths), getattr(torch, case.dtype)
        total = max(case.lengths)
        heads = case.heads + 2 * case.kv_heads
        self.qkv = torch.randn(batch, total, heads, case.dim, generator=generator).to(dtype)
        columns = -(-total // case.page) + 1
        num_pages = 1 + batch * columns
        pages = torch.randperm(batch * columns, generator=generator) + 1
        self.page_table = pages.view(batch, columns).int()
        self.cache = torch.full((num_pages, case.page, 2, case.kv_heads, case.dim), float("nan"), dtype=dtype)
        self.table = Rope(theta=100.0).table(case.dim, total)
        self.norms = (None, None)
        if case.norm:
            q, k = (torch.rand(case.dim, generator=generator).to(dtype) + 0.5 for _ in range(2))
            self.norms = (q, k)
        self.scale = case.dim**-0.5

    def chunk(self, row: int, start: int, stop: int) -> Tensor:
        """A copy of some tokens' qkv [1, T, heads, D]."""
        return self.qkv[row : row + 1, start:stop].clone()

    def positions(self) -> Tensor:
        return torch.stack([torch.arange(n - self.case.width, n) for n in self.case.lengths])


def textbook(inputs: Inputs) -> Tensor:
    """[B, T, H, D] float32, from unpaged keys, in the plainest way."""
    case = inputs.case
    rows = []
    for row, length in enumerate(case.lengths):
        qkv = inputs.qkv[row, :length].float()
        q, k, v = qkv.split((case.heads, case.kv_heads, case.kv_heads), 1)
        if inputs.norms[0] is not None and inputs.norms[1] is not None:
            q, k = (
                (x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w.float())
                for x, w in zip((q, k), inputs.norms, strict=True)
            )
        cos, sin = inputs.table[:length, None].unbind(-1)

        def turn(x: Tensor, cos: Tensor = cos, sin: Tensor = sin) -> Tensor:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

        q, k = turn(q), turn(k)
        group = case.heads // case.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("thd,nhd->htn", q, k) * inputs.scale
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        rows.append(torch.einsum("htn,nhd->thd", scores.softmax(-1), v)[-case.width :])
    return torch.stack(rows)


def run(inputs: Inputs, ops: Any) -> Tensor:
    """Write what came before with the CPU's ops; write the new tokens and attend with `ops`."""
    case = inputs.case

    def write(ops: Any, qkv: Tensor, table: Tensor, positions: Tensor) -> None:
        slots, rotary = ops.kv_plan(table, positions, inputs.table, case.page)
        ops.rotate_write_(qkv.flatten(1), inputs.cache, slots, rotary, case.heads, *inputs.norms, 1e-6)

    for row, length in enumerate(case.lengths):
        before = length - case.width
        if before:
            old = inputs.chunk(row, 0, before)
            write(
                attention_cpu, old.flatten(0, 1), inputs.page_table[row : row + 1], torch.arange(before)[None]
            )
    new = torch.cat([inputs.chunk(r, n - case.width, n) for r, n in enumerate(case.lengths)]).flatten(0, 1)
    positions = inputs.positions()
    write(ops, new, inputs.page_table, positions)
    q = new.narrow(1, 0, case.heads).unflatten(0, positions.shape)
    extra = {"splits": case.splits} if hasattr(ops, "choose_splits") else {}
    out: Tensor = ops.paged_attention(q, inputs.cache, inputs.page_table, positions, inputs.scale, **extra)
    return out


def tolerance(case: Case) -> float:
    return 4e-3 if case.dtype == "float16" else 2e-5


def error(case: Case, ops: Any) -> float:
    inputs = Inputs(case)
    return float((run(inputs, ops).float() - textbook(inputs)).abs().max())


@pytest.mark.parametrize("case", DECODE + PREFILL, ids=str)
def test_cpu_attention_matches_the_textbook(case: Case) -> None:
    assert error(case, attention) < tolerance(case)


def test_cases_cover_both_ways_of_the_cpu() -> None:
    assert {c.width > attention_cpu.DECODE_WIDTH for c in DECODE + PREFILL} == {True, False}


def test_cpu_bfloat16_is_near_float32() -> None:
    assert error(Case((90, 30), 4, dtype="bfloat16"), attention) < 4e-2


@pytest.fixture(scope="module")
def interpreted() -> dict[str, float]:
    """Each case's error of the Triton kernels, from one interpreter process."""
    result = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert result.returncode == 0, result.stderr
    errors: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return errors


@pytest.mark.process
@needs_triton
@pytest.mark.parametrize("case", DECODE + PREFILL, ids=str)
def test_triton_attention_matches_the_textbook(case: Case, interpreted: dict[str, float]) -> None:
    assert interpreted[str(case)] < tolerance(case)


@pytest.mark.process
@needs_triton
def test_triton_silu_mul_matches(interpreted: dict[str, float]) -> None:
    assert interpreted["silu_mul"] < 1e-5


@pytest.mark.process
@needs_triton
def test_triton_rows_do_not_read_pages_beyond_their_table(interpreted: dict[str, float]) -> None:
    assert interpreted["beyond"] == 0.0


def test_cuda_without_triton_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "weft.ops.attention_triton", raising=False)
    triton_kernels.cache_clear()
    with pytest.raises(InterfaceError, match="pip install triton"):
        triton_kernels("attention_triton")


@needs_triton
def test_splits_fill_the_gpu_and_stay_long() -> None:
    from weft.ops.attention_triton import choose_splits

    assert choose_splits(8, 1, 131072, 132) == 32
    assert choose_splits(512, 4, 131072, 132) == 1
    assert choose_splits(1, 4, 256, 132) == 2
    assert choose_splits(1, 4, 16, 132) == 1
    assert choose_splits(1, 9, 1 << 20, 132) == 64
    assert choose_splits(8, 100, 131072, 132) == 1


KERNEL_SHAPES = (
    {"H": 32, "HKV": 8, "D": 128, "DP": 128, "SPLITS": 8, "queries": 16},
    {"H": 6, "HKV": 3, "D": 80, "DP": 128, "SPLITS": 1, "queries": 200},
    {"H": 4, "HKV": 2, "D": 256, "DP": 256, "SPLITS": 4, "queries": 18},
)
BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
SHARED_MEMORY = 99 * 1024
POINTERS = {
    "PageTable": "*i32",
    "Positions": "*i64",
    "Slots": "*i64",
    "Lse": "*fp32",
    "Parts": "*fp32",
    "Rotary": "*fp32",
    "Table": "*fp32",
}
SCALARS = {"scale": "fp32", "eps": "fp32"}


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize(("capability", "dtype"), [(80, "fp16"), (90, "bf16"), (100, "fp32")])
def test_kernels_compile_without_a_gpu(capability: int, dtype: str) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from weft.ops import attention_triton, silu_mul_triton

    module = {**vars(attention_triton), **vars(silu_mul_triton)}
    kernels = {name: module[name] for name in module if name.endswith("_kernel")}
    assert len(kernels) == 5
    for shape in KERNEL_SHAPES:
        block, keys, warps = attention_triton.choose_block(shape["queries"], shape["DP"] * BYTES[dtype])
        constants = {**shape, "BM": block, "BN": keys, "PAGE": 16, "HALF": 128, "NORM": True, "BLOCK": 1024}
        for name, kernel in kernels.items():
            if name == "combine_kernel" and shape["SPLITS"] == 1:
                continue
            names = kernel.arg_names
            signature = {}
            for argument in names:
                other = f"*{dtype}" if argument[0].isupper() else SCALARS.get(argument, "i32")
                signature[argument] = "constexpr" if argument in constants else POINTERS.get(argument, other)
            if name == "attend_kernel" and shape["SPLITS"] > 1:
                signature["Out"] = "*fp32"
            bound = {(names.index(n),): v for n, v in constants.items() if n in names}
            options = {"num_warps": warps, "num_stages": 2} if name == "attend_kernel" else {}
            compiled = triton.compile(
                ASTSource(kernel, signature, bound), target=GPUTarget("cuda", capability, 32), options=options
            )
            assert compiled.asm["cubin"]
            assert compiled.metadata.shared <= SHARED_MEMORY


def interpret() -> dict[str, float]:
    """Every case through the kernels."""
    from weft.ops import attention_triton, silu_mul_triton

    errors = {str(case): error(case, attention_triton) for case in DECODE + PREFILL}
    gate_up = torch.randn(3, 2 * 1500)
    gate, up = gate_up.chunk(2, -1)
    wanted = torch.nn.functional.silu(gate) * up
    errors["silu_mul"] = float((silu_mul_triton.silu_mul(gate_up) - wanted).abs().max())
    errors["beyond"] = beyond(attention_triton)
    return errors


def beyond(ops: Any) -> float:
    """How much output and foreign pages change for a row whose positions outrun its page table."""
    inputs = Inputs(Case((32,), 2))
    run(inputs, ops)
    before = inputs.cache[1:].clone()
    table, positions = inputs.page_table[:, :1].contiguous(), torch.tensor([[900, 901]])
    slots, rotary = ops.kv_plan(table, positions, inputs.table, 16)
    ops.rotate_write_(inputs.chunk(0, 0, 2)[0].flatten(1), inputs.cache, slots, rotary, 4, None, None, 0.0)
    changed = (before - inputs.cache[1:]).nan_to_num().abs().max()
    q = inputs.qkv[:, :2, :4].clone()
    out = ops.paged_attention(q, inputs.cache, table, positions, 0.25, splits=2)
    return float(changed) + float(out.isnan().sum())


if __name__ == "__main__":
    print(json.dumps(interpret()))
