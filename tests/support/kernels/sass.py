"""A compiled kernel's instructions: what it does before it waits for the kernels before it."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,6}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)")
ON_MEMORY = {"LD", "LDG", "LDGSTS", "ST", "STG", "ATOM", "ATOMG", "RED", "REDG", "CCTL", "UBLKPF", "UBLKCP"}
"""Instructions that may touch what other kernels write."""
LETS_START, WAITS = "PREEXIT", "ACQBULK"


def cuobjdump() -> str | None:
    """The tool that shows instructions: CUDA's, or the one in Triton's package; None where neither is."""
    found = shutil.which("cuobjdump")
    spec = None if found else importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return found
    bundled = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return str(bundled) if bundled.exists() else None


def instructions(sass: str) -> list[str]:
    """The instructions of a kernel in their order, as `cuobjdump -sass` shows them."""
    return INSTRUCTION.findall(sass)


def before_wait(sass: str) -> list[str]:
    """What a kernel does with memory before it waits. All of its text is gone through in its order; a kernel that lets
    the next one start does that before anything else."""
    names = instructions(sass)
    assert WAITS in names, "it does not wait for the kernel before it"
    early = names[: names.index(WAITS)]
    assert "EXIT" not in early, "it may end before what is before it"
    touched = [name for name in early if name.partition(".")[0] in ON_MEMORY]
    if LETS_START in names:
        assert LETS_START in early, "it waits before it lets the next kernel start"
        first = early.index(LETS_START)
        assert not any(name.partition(".")[0] in ON_MEMORY for name in early[:first]), "it reads first of all"
    return touched
