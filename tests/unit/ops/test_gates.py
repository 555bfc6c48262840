"""Gates on rows of activations, on the CPU and in Triton, against plain torch.

Run as a script under TRITON_INTERPRET=1 this file checks the Triton kernel and prints what it found.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from support.captured import Captured
from support.kernels.interpreter import interpreted, make_hostile, needs_triton
from weft.errors import InputError
from weft.ops.gates import gated_norm
from weft.ops.linear import Norm
from weft.ops.rows import copy_rows_

SIZES = ((1, 128), (4, 32), (3, 21), (2, 300))
"""Heads and their sizes."""
ROWS = 70
LIVE = (0, 1, 20, 70, 90)
DTYPES = {"float32": torch.float32, "float16": torch.float16}


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def inputs(heads: int, size: int, rows: int = ROWS, seed: int = 0) -> tuple[Tensor, Tensor, Norm]:
    """Rows of `x` and of the gate are apart."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, heads + 1, size, generator=generator)[:, :heads]
    gate = 4 * torch.randn(rows, heads * size + 5, generator=generator)[:, 5:]
    return x, gate, Norm(torch.randn(size, generator=generator), 1e-5)


def expected(x: Tensor, gate: Tensor, norm: Norm) -> Tensor:
    """In float64."""
    normed = F.rms_norm(x.double(), x.shape[2:], norm.weight.double(), norm.eps)
    return normed.flatten(1) * F.silu(gate.double())


@pytest.mark.parametrize(("heads", "size"), SIZES)
def test_values_are_those_of_torch(heads: int, size: int) -> None:
    given = inputs(heads, size)
    actual = gated_norm(*given)
    torch.testing.assert_close(actual.double(), expected(*given), rtol=2e-6, atol=2e-6)


def test_values_are_those_of_transformers() -> None:
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

    x, gate, norm = inputs(4, 32)
    module = Qwen3NextRMSNormGated(32, eps=norm.eps)
    module.weight.data.copy_(norm.weight)
    with torch.no_grad():
        wanted = module(x.reshape(-1, 32), gate.reshape(-1, 32)).view(ROWS, -1)
    torch.testing.assert_close(gated_norm(x, gate, norm), wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("heads", "size"), SIZES)
def test_a_rows_bits_are_its_own(threads: int, heads: int, size: int) -> None:
    x, gate, norm = inputs(heads, size)
    alone = torch.cat([gated_norm(x[n, None], gate[n, None], norm) for n in range(ROWS)])
    for rows in (1, 2, 33, ROWS):
        assert torch.equal(gated_norm(x[:rows], gate[:rows], norm), alone[:rows])
    order = torch.randperm(ROWS)
    assert torch.equal(gated_norm(x[order], gate[order], norm), alone[order])


def test_nan_stays_in_its_head() -> None:
    x, gate, norm = inputs(4, 32)
    whole = gated_norm(x, gate, norm)
    x[3, 1, 5], gate[5, 40] = math.nan, math.nan
    actual = gated_norm(x, gate, norm)
    assert actual[3, 32:64].isnan().all() and actual[5, 40].isnan()
    actual[3, 32:64], actual[5, 40] = whole[3, 32:64], whole[5, 40]
    assert torch.equal(actual, whole)


@pytest.mark.parametrize("live", LIVE)
def test_a_replay_leaves_rows_that_are_not_live_alone(live: int) -> None:
    x, gate, norm = inputs(4, 32)
    wanted = gated_norm(x[:live], gate[:live], norm)
    count, out = torch.tensor([ROWS]), torch.zeros(ROWS, 128)
    graph = Captured(lambda: copy_rows_(out, gated_norm(x, gate, norm, count), count))
    count.fill_(live)
    x[live:], gate[live:] = math.nan, math.nan
    graph.replay()
    assert torch.equal(out[:live], wanted) and not out[live:].any()
    plain = torch.full((ROWS, 128), -7.0)
    torch.ops.weft.gated_norm(x, gate, norm.weight, norm.eps, plain, count)
    assert torch.equal(plain[:live], wanted) and (plain[live:] == -7).all()


def test_fake_tensors_have_the_shape() -> None:
    with FakeTensorMode():
        assert gated_norm(torch.empty(3, 4, 8), torch.empty(3, 32), Norm(torch.empty(8), 1e-6)).shape == (
            3,
            32,
        )


def test_arguments_that_do_not_fit_are_refused() -> None:
    x, gate, norm = inputs(4, 32)
    for message, arguments in {
        r"gate \[70, 128\] and a norm of \[32\], not \[70, 127\]": (x, gate[:, 1:], norm),
        r"and \[31\]": (x, gate, Norm(norm.weight[1:], 1e-5)),
        "token must be contiguous": (x.transpose(1, 2).contiguous().transpose(1, 2), gate, norm),
        "float32, not torch.float16": (x.half(), gate, norm),
    }.items():
        with pytest.raises(InputError, match=message):
            gated_norm(*arguments)


@pytest.fixture(scope="module")
def in_triton() -> dict[str, Any]:
    """The results of the kernel, from one interpreter process."""
    return interpreted(__file__)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "size"), SIZES)
def test_values_are_those_of_torch_in_triton(
    heads: int, size: int, dtype: str, in_triton: dict[str, Any]
) -> None:
    assert in_triton[f"{heads} {size} {dtype}"] < (2e-6 if dtype == "float32" else 1e-3)


@pytest.mark.slow
@needs_triton
def test_bits_in_triton(in_triton: dict[str, Any]) -> None:
    """A row alone is as in a batch, and rows that are not live are left alone."""
    assert in_triton["alone"] and in_triton["live"] == [True] * len(LIVE)


def interpret() -> dict[str, Any]:
    """Every size through the kernel."""
    from weft.ops.gates_triton import gated_norm as launch

    def run(x: Tensor, gate: Tensor, norm: Norm, live: int | None = None) -> Tensor:
        out = torch.full((len(x), gate.shape[1]), 7.0, dtype=x.dtype)
        launch(x, gate, norm.weight, norm.eps, out, None if live is None else torch.tensor([live]))
        return out

    make_hostile(seed=2)
    results: dict[str, Any] = {"live": []}
    for heads, size in SIZES:
        for name, dtype in DTYPES.items():
            x, gate, norm = inputs(heads, size, 5)  # a norm in float32 with rows of any dtype
            given = x.to(dtype), gate.to(dtype), norm
            wanted = expected(*given)
            off = (run(*given).double() - wanted).abs() / (1 + wanted.abs())
            results[f"{heads} {size} {name}"] = float(off.max())
    x, gate, norm = inputs(4, 32)
    whole = run(x, gate, norm)
    results["alone"] = all(torch.equal(run(x[n, None], gate[n, None], norm)[0], whole[n]) for n in range(4))
    for live in LIVE:
        x, gate, _ = inputs(4, 32)
        x[live:], gate[live:] = math.nan, math.nan
        out = run(x, gate, norm, live)
        results["live"].append(torch.equal(out[:live], whole[:live]) and bool((out[live:] == 7).all()))
    return results


if __name__ == "__main__":
    print(json.dumps(interpret()))
