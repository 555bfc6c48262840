"""The code of the kernels in CUDA C++ as the extension has it for sm_90, without a GPU: how they follow each other, and
that nothing spills."""

from __future__ import annotations

import re
import subprocess

import pytest

from support.kernels.sass import LETS_START, before_wait, cuobjdump, instructions
from weft import _core

KERNELS = {"apply_kernel", "copy_kernel", "read_kernel", "proposals_kernel", "sample_rows_kernel"} | {
    "advance_kernel",
    "keep_kernel",
    "open_kernel",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kernels() -> dict[str, str]:
    """The instructions of every kernel, by its whole name."""
    if "90-real" not in _core.cuda_architectures().split():
        pytest.skip("the extension was built without nvcc")
    tool = cuobjdump()
    if tool is None:
        pytest.skip("cuobjdump is not here: neither CUDA's nor the one in Triton's package")
    command = [tool, "-sass", "-arch", "sm_90", _core.__file__]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = re.split(r"\bFunction : (\S+)", shown)[1:]
    return dict(zip(names[::2], names[1::2], strict=True))


def short(name: str) -> str:
    """The kernel's own name in a mangled one."""
    found = re.search(r"\d([a-z_]+_kernel)[IE]", name)
    assert found is not None, name
    return found[1]


def test_all_kernels_are_found(kernels: dict[str, str]) -> None:
    assert {short(name) for name in kernels} == KERNELS


def test_kernels_wait_before_they_touch_memory(kernels: dict[str, str]) -> None:
    for name, sass in kernels.items():
        assert before_wait(sass) == [], short(name)


def test_all_but_the_reader_of_slots_let_the_next_start(kernels: dict[str, str]) -> None:
    """What the reader writes, kernels after it may read without waiting for it: so they start when it has written."""
    for name, sass in kernels.items():
        assert (LETS_START in instructions(sass)) == (short(name) != "read_kernel"), short(name)


def test_the_reader_of_slots_ends_when_all_see_what_it_wrote(kernels: dict[str, str]) -> None:
    (sass,) = (sass for name, sass in kernels.items() if short(name) == "read_kernel")
    names = [name.partition(".")[0] for name in instructions(sass)]
    last_write = max(place for place, name in enumerate(names) if name in ("ST", "STG"))
    assert "MEMBAR" in names[last_write:]


def test_nothing_spills(kernels: dict[str, str]) -> None:
    for name, sass in kernels.items():
        assert not {"LDL", "STL"} & {name.partition(".")[0] for name in instructions(sass)}, short(name)
