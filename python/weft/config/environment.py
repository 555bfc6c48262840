"""The machine and the versions that run, as reports and bug reports name them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from weft.config import named_commit

PACKAGES = (
    "weft",
    "torch",
    "xgrammar",
    "llguidance",
    "wasmtime",
    "tokenizers",
    "transformers",
    "numpy",
    "triton",
    "cuda-core",
)


def environment() -> dict[str, Any]:
    """Machine, versions, commit and date. Names no path and no host."""
    return {
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "torch_threads": torch.get_num_threads(),
        },
        "versions": {"python": platform.python_version(), **versions()},
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
    }


def versions() -> dict[str, str]:
    """Versions of the packages that matter and are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def commit() -> str:
    """The commit of the working tree that runs, "+" where it has changes, or "unknown". For an installed wheel,
    which has none, the environment's WEFT_COMMIT.
    """
    if named := named_commit():
        return named
    here = Path(__file__).parent
    try:
        run = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12"],
            cwd=here,
            capture_output=True,
            text=True,
        )
    except OSError:
        return "unknown"
    return run.stdout.strip() or "unknown"
