"""The machine and the versions in use, for benchmark results and bug reports."""

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
    """Machine, versions, commit and date, without paths and host names."""
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
    """Versions of the `PACKAGES` that are installed."""
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def commit() -> str:
    """The commit of the working tree, with "+" if it has changes; for an installed wheel, WEFT_COMMIT; or "unknown"."""
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
