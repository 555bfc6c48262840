"""Measures the host memory that this process can still use."""

from __future__ import annotations

from pathlib import Path

from weft.errors import InputError

ROOT = Path("/")
"""The root of the file system; tests pass another."""


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
