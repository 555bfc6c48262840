"""Where weights lie on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from weft.ops.huge_pages import settled

MAPPINGS = Path("/proc/self/smaps")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def flags_at(address: int) -> set[str]:
    """The kernel's flags of the mapping that holds an address."""
    is_inside = False
    for line in MAPPINGS.read_text().splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            begin, end = (int(part, 16) for part in name.split("-"))
            is_inside = begin <= address < end
        elif is_inside and name == "VmFlags:":
            return set(rest.split())
    raise AssertionError(f"nothing is mapped at {address:x}")


@pytest.mark.skipif(not (MAPPINGS.exists() and HUGE_PAGES.exists()), reason="needs a Linux with huge pages")
def test_weights_are_in_private_memory_that_asks_for_huge_pages() -> None:
    """Shared memory seldom gets them."""
    weight = torch.randn(1024, 1024)
    copy = settled(weight)
    assert torch.equal(copy, weight) and copy.data_ptr() % 64 == 0
    flags = flags_at(copy.data_ptr())
    assert "hg" in flags and "sh" not in flags
