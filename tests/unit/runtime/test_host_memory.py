"""What the host has left: of the system, and of the control groups around the process."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import pytest
import torch

from weft.errors import InputError
from weft.runtime import get
from weft.runtime.host_memory import available_bytes, lazy_zeros, unwritten_bytes

GIB = 1 << 30


def system(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    files = {
        "proc/meminfo": f"MemTotal: 99 kB\nMemAvailable:   {8 * GIB // 1024} kB\n",
        "proc/self/cgroup": cgroup,
        **files,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def group(path: str, limit: object, used: int, inactive: int = 0) -> dict[str, str]:
    base = f"sys/fs/cgroup{path}"
    return {
        f"{base}/memory.max": f"{limit}\n",
        f"{base}/memory.current": f"{used}\n",
        f"{base}/memory.stat": f"anon 1\ninactive_file {inactive}\n",
    }


def old_group(path: str, limit: int, used: int) -> dict[str, str]:
    base = f"sys/fs/cgroup/memory{path}"
    return {
        f"{base}/memory.limit_in_bytes": f"{limit}\n",
        f"{base}/memory.usage_in_bytes": f"{used}\n",
        f"{base}/memory.stat": "cache 5\ntotal_inactive_file 0\n",
    }


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("", {}, 8 * GIB),
        ("0::/\n", {}, 8 * GIB),
        ("0::/\n", group("", "max", GIB), 8 * GIB),
        ("0::/\n", group("", 3 * GIB, GIB), 2 * GIB),
        ("0::/\n", group("", 3 * GIB, GIB, inactive=GIB // 2), 5 * GIB // 2),
        ("0::/\n", group("", 30 * GIB, GIB), 8 * GIB),
        ("0::/\n", group("", GIB, 2 * GIB), 0),
        ("0::/a/b\n", {**group("/a", 2 * GIB, GIB), **group("/a/b", 7 * GIB, GIB)}, GIB),
        ("0::/../a\n", group("/a", 2 * GIB, GIB), GIB),
        ("3:cpu,memory:/a\n1:name=systemd:/\n", old_group("/a", 3 * GIB, GIB), 2 * GIB),
        ("3:cpu:/a\n", old_group("/a", 3 * GIB, GIB), 8 * GIB),
    ],
)
def test_the_least_counts(tmp_path: Path, cgroup: str, files: dict[str, str], expected: int) -> None:
    assert available_bytes(system(tmp_path, cgroup, files)) == expected


def test_a_system_that_does_not_say_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"give EngineConfig\.num_pages"):
        available_bytes(tmp_path)


def test_the_cpu_has_what_the_host_has() -> None:
    assert 0 < get("cpu").free_memory() < 1 << 50


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_zeros_take_memory_when_they_are_written() -> None:
    gc.collect()  # zeros of other tests must not go meanwhile
    before, promised = resident_bytes(), unwritten_bytes()
    zeros = lazy_zeros((4, 64 << 20), torch.float32)
    assert zeros.shape == (4, 64 << 20) and zeros.dtype == torch.float32
    assert unwritten_bytes() - promised == GIB
    zeros[0, : 8 << 20] = 1
    assert zeros[0, (8 << 20) - 1] == 1 and zeros[0, 8 << 20] == 0 and zeros[3, -1] == 0
    assert 32 << 20 <= resident_bytes() - before < 64 << 20
    # What is not written is promised to these zeros, so it is not free for others.
    written = GIB - (unwritten_bytes() - promised)
    assert 32 << 20 <= written < 40 << 20
    del zeros
    gc.collect()
    assert unwritten_bytes() == promised


def test_zeros_that_no_system_has_room_for_are_an_error() -> None:
    with pytest.raises(InputError, match="the system refuses"):
        lazy_zeros((1 << 60,), torch.float32)
