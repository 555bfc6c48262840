"""Kernels as processors with fewer instructions have them: the same values, and each set of instructions pays.

Run as a script this file prints how fast a product is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from weft import _core
from weft.ops.linear import Linear

SETS = ("plain", "avx2", "avx512")
OWN = SETS.index(_core.instruction_set())


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(SETS.index(name) > OWN, reason=f"needs a processor with {name}")


def run(name: str, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "WEFT_INSTRUCTION_SET": name, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in SETS[:-1]])
def test_fewer_instructions_give_the_same_values(name: str) -> None:
    assert run(name, "-c", "from weft import _core; print(_core.instruction_set())").strip() == name
    here = Path(__file__).parent
    tests = [
        str(here / f"test_{of}.py")
        for of in (
            "linear_native",
            "int8",
            "packing",
            "quantized",
            "quantized_products",
            "mixed_parts",
            "ordered_inputs",
            "experts",
            "routing",
            "attention",
            "latent",
            "recurrence",
            "gates",
            "rows",
        )
    ]
    assert " passed" in run(name, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests)


@pytest.mark.slow
def test_a_wrong_name_ends_the_import() -> None:
    with pytest.raises(
        AssertionError, match="WEFT_INSTRUCTION_SET is 'sse'; it can be plain, avx2 or avx512"
    ):
        run("sse", "-c", "import weft._core")


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in SETS[1:]])
def test_more_instructions_are_faster(name: str) -> None:
    """A compiler keeps vectors that are wider than its registers in memory: then AVX2 is slower than none."""
    fewer = SETS[SETS.index(name) - 1]
    assert float(run(name, __file__)) > 1.2 * float(run(fewer, __file__))


def rate() -> float:
    """Products of 8 rows in a second of one thread: the best of some."""
    torch.set_num_threads(1)
    linear, x = Linear(torch.randn(1024, 256)), torch.randn(8, 256)
    best = 0.0
    for _ in range(10):
        begin = time.process_time()
        for _ in range(50):
            linear(x)
        best = max(best, 50 / (time.process_time() - begin))
    return best


if __name__ == "__main__":
    print(rate())
