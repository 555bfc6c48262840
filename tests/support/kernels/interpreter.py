"""Runs Triton's kernels on the CPU with its interpreter, in a separate process: TRITON_INTERPRET is read on import."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

EXACT: dict[str, Callable[..., Any]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
"""NumPy's functions by the names of Triton's."""

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def interpreted(script: str, *arguments: str) -> dict[str, Any]:
    """Run `script` with Triton's interpreter. Returns the JSON in the last line of its output."""
    tests = Path(__file__).parents[2]
    paths = os.pathsep.join([str(tests), *sys.path])
    result = subprocess.run(
        [sys.executable, script, *arguments],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def ordered_product(a: Any, b: Any, dtype: Any) -> Any:
    """Return the product [M, N] of [M, K] and [K, N]. Each value is summed in the order of K, so that it does not
    depend on the other rows. NumPy's own order depends on the processor, and sometimes on the row."""
    total = np.zeros((a.shape[0], b.shape[1]), dtype)
    for column, row in zip(a.T.astype(dtype), b.astype(dtype), strict=True):
        total += column[:, None] * row
    return total


def make_hostile(seed: int) -> None:
    """From now on, run the programs of a grid in a random order, so that any may be the last. Memory that nothing
    wrote is NaN. The bits of a product's value depend only on its own row and column, as on a GPU."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    from triton.runtime import interpreter

    builder, plain = interpreter.interpreter_builder, interpreter.InterpreterBuilder.set_grid_idx
    chooser, order = random.Random(seed), [(0, 0, 0)]

    def shuffled(x: int, y: int, z: int) -> None:
        dim = builder.grid_dim
        if (x, y, z) == (0, 0, 0):
            order[:] = itertools.product(*map(range, dim))
            chooser.shuffle(order)
        plain(builder, *order[(x * dim[1] + y) * dim[2] + z])

    builder.set_grid_idx = shuffled

    def dot(a: Any, b: Any, d: Any, *_: object) -> Any:
        return interpreter.TensorHandle(
            ordered_product(values(a), values(b), d.data.dtype) + d.data, d.dtype.scalar
        )

    def values(tensor: Any) -> Any:
        # The interpreter keeps bfloat16 as the upper halves of float32.
        if str(tensor.dtype.scalar) != "bf16":
            return tensor.data
        return (tensor.data.astype(np.uint32) << 16).view(np.float32)

    builder.create_dot = dot
    _make_fast(interpreter)


def _make_fast(interpreter: Any) -> None:
    """Replace two parts of the interpreter, with the same results, in which it spends two thirds of its time."""
    prepare, prepared = interpreter._patch_lang, set[int]()

    def prepare_once(function: Any) -> Any:
        """Prepare triton.language for the functions of a module. Plain, each call of a function does this, and each
        kernel takes it back."""
        module = id(function.__globals__)
        if module not in prepared:
            prepared.add(module)
            prepare(function)
        return interpreter._LangPatchScope()  # nothing to take back

    def check_range(_: object, left: Any, right: Any, operation: Any) -> None:
        """Check by NumPy that a sum, difference or product of integers is one of their type."""
        kind = left.type.scalar
        if kind.int_bitwidth < 64:
            exact = EXACT[operation.__name__](
                left.handle.data.astype(np.int64), right.handle.data.astype(np.int64)
            )
            fits = (kind.get_int_min_value() <= exact) & (exact <= kind.get_int_max_value())
            assert fits.all(), f"{operation.__name__} of {kind} overflows"

    interpreter._patch_lang = prepare_once
    interpreter.TritonSemantic.binary_op_sanitize_overflow_impl = check_range
