"""Host memory: measures what this process can still use, and provides zeros that take memory only when written."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from math import prod
from pathlib import Path
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from weft.errors import InputError

ROOT = Path("/")
"""The root of the file system; tests pass another."""


MAP_NORESERVE = 0x4000  # of Linux; Python names it since 3.13

_mapped: WeakSet[mmap.mmap] = WeakSet()


def lazy_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros whose memory the system provides when it is first written. Reading does not take memory either.
    `free_bytes` does not count the part that is not written yet. Raises `InputError` if the system has no room for
    the addresses."""
    size = prod(shape) * dtype.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    try:
        memory = mmap.mmap(-1, max(size, 1), flags=flags)
    except (OSError, ValueError) as error:
        raise InputError(f"the system refuses {size} bytes of memory: {error}") from None
    advise_huge_pages(memory)
    _mapped.add(memory)
    return torch.frombuffer(memory, dtype=torch.uint8)[:size].view(dtype).view(*shape)


def advise_huge_pages(memory: mmap.mmap) -> None:
    """Ask for huge pages, if the system has them. Reading memory from many places is faster then, because fewer
    addresses must be translated."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)


def free_bytes() -> int:
    """`available_bytes` without what `lazy_zeros` will still take. Raises `InputError` if the system does not report
    it."""
    return max(available_bytes() - unwritten_bytes(), 0)


def unwritten_bytes() -> int:
    """Bytes of `lazy_zeros` that the system has not provided yet."""
    page, unwritten = mmap.PAGESIZE, 0
    for memory in list(_mapped):
        flags = np.zeros(-(-len(memory) // page), dtype=np.uint8)
        address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        # The lowest bit of each flag says whether the page is in memory.
        if ctypes.CDLL(None).mincore(
            ctypes.c_void_p(address), ctypes.c_size_t(len(memory)), flags.ctypes.data_as(ctypes.c_void_p)
        ):
            flags[:] = 0  # unknown: the whole of it may still be written
        unwritten += int((flags & 1 == 0).sum()) * page
    return unwritten


def available_bytes(root: Path = ROOT) -> int:
    """Bytes available without swapping: the smaller of `MemAvailable` and the room left in the process's control
    groups. Raises `InputError` if the system does not report it."""
    meminfo = root / "proc/meminfo"
    if not meminfo.exists():
        raise InputError("this system does not say how much memory is free; give EngineConfig.num_pages")
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    return max(min([available, *_left_in_groups(root)]), 0)


def _left_in_groups(root: Path) -> list[int]:
    """Bytes left under the limits of the process's control group and of its ancestors that have a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    left: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # cgroup v2
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            left_in_group = _left_in(base.joinpath(*parts[:depth]), *names)
            left += [] if left_in_group is None else [left_in_group]
    return left


def _left_in(group: Path, limit: str, usage: str, inactive: str) -> int | None:
    """Bytes left under one group's limit; None without a limit. Inactive page cache counts as free."""
    try:
        limit_text = (group / limit).read_text().strip()
        if limit_text == "max":
            return None
        used = int((group / usage).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return int(limit_text) - max(used - int(stat.get(inactive, 0)), 0)
