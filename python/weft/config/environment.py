"""Describes the machine and the installed versions, for benchmark results and bug reports."""

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
from weft.version import __version__

PACKAGES = (
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
    """Return the machine, versions, commit and date (UTC). Paths and host names are left out."""
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
    """Return the versions of weft and of those `PACKAGES` that are installed."""
    installed = {"weft": __version__}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def processor() -> str:
    """Return the name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def commit() -> str:
    """Return WEFT_COMMIT if it is set, else the working tree's commit ("+" marks uncommitted changes), else
    "unknown"."""
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
