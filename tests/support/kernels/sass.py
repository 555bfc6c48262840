"""Inspects the instructions of a compiled kernel before it waits for the kernels before it."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,6}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)")
ON_MEMORY = {"LD", "LDG", "LDGSTS", "ST", "STG", "ATOM", "ATOMG", "RED", "REDG", "CCTL", "UBLKPF", "UBLKCP"}
"""Instructions that may access memory which other kernels write."""
LETS_START, WAITS = "PREEXIT", "ACQBULK"


def cuobjdump() -> str | None:
    """Return the path of cuobjdump, from CUDA or from Triton's package; None if there is neither."""
    found = shutil.which("cuobjdump")
    spec = None if found else importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return found
    bundled = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return str(bundled) if bundled.exists() else None


def instructions(sass: str) -> list[str]:
    """Return the names of a kernel's instructions in order, from the output of `cuobjdump -sass`."""
    return INSTRUCTION.findall(sass)


def before_wait(sass: str) -> list[str]:
    """Return the memory instructions of a kernel before its wait, and check the order of its other instructions.

    The instructions are read in the order of the text. A kernel that lets the next one start must do so before any
    memory access.
    """
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
