"""Triton's kernels on the CPU, through its interpreter, in a process of its own: TRITON_INTERPRET is read on import."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def interpreted(script: str) -> dict[str, Any]:
    """What `script` prints as JSON in its last line, run where Triton interprets."""
    tests = Path(__file__).parents[2]
    paths = os.pathsep.join([str(tests), *sys.path])
    result = subprocess.run(
        [sys.executable, script],
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
    """The product [M, N] of [M, K] and [K, N], each value summed in the order of K. NumPy's own sums as its library has
    it for the processor, and at times otherwise for a block's first row than for its fourth."""
    total = np.zeros((a.shape[0], b.shape[1]), dtype)
    for column, row in zip(a.T.astype(dtype), b.astype(dtype), strict=True):
        total += column[:, None] * row
    return total


def make_hostile(seed: int) -> None:
    """From here on programs of a grid run in a random order, so that any may be the last, memory that nothing wrote is
    NaN, and a value's bits depend on its own row and column alone, as on a GPU."""
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
            ordered_product(a.data, b.data, d.data.dtype) + d.data, d.dtype.scalar
        )

    builder.create_dot = dot
