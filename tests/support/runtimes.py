"""The runtimes for contract tests: the CPU's under its schedules, and CUDA's if there is a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from weft.runtime import Runtime, cpu, get
from weft.runtime.cuda import unavailable_reason

NO_CUDA = unavailable_reason()


def runtimes(*schedules: str) -> list[Any]:
    """Return parameters for a fixture: schedules of the CPU ("random-SEED" among them), and "cuda"."""
    marks = [
        pytest.mark.gpu,
        pytest.mark.gpu_smoke,
        pytest.mark.skipif(NO_CUDA is not None, reason=f"needs a CUDA GPU: {NO_CUDA}"),
    ]
    return [*schedules, pytest.param("cuda", marks=marks)]


@contextmanager
def runtime_under(schedule: str) -> Iterator[Runtime]:
    """Yield the runtime for a parameter of `runtimes`."""
    if schedule == "cuda":
        yield get("cuda")
        return
    name, _, seed = schedule.partition("-")
    cpu.set_schedule(name, int(seed or 0))
    yield get("cpu")
    cpu.synchronize()
    cpu.set_schedule("inline")
