"""Fill a folder with the wheels that weft needs on a GPU machine without network, and weft's own (`make gpu-carry`).

The machine has a CUDA build of torch, transformers and what these need, on Python 3.12 (x86-64, Linux). Run this with a
Python 3.12 of another machine, which has network and nvcc: weft's wheel is built there, for that Python.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = "3.12"
THERE = frozenset(
    {"torch", "jinja2", "numpy", "safetensors", "tokenizers", "transformers", "rich", "typer", "pytest"}
)
"""Of weft's own needs, what the machine has."""
CARRIED = (
    *("xgrammar", "apache-tvm-ffi", "llguidance", "wasmtime"),
    *("jsonschema", "jsonschema-specifications", "referencing", "rpds-py"),
    *("pydantic", "pydantic-core", "annotated-types", "typing-inspection"),
    *("pytest-timeout", "pytest-xdist", "execnet"),
)
"""The rest, with what it needs in turn."""
GLIBC = (17, 24, 27, 28, 31, 34, 35)
PLATFORMS = ("manylinux2014_x86_64", "manylinux1_x86_64", *(f"manylinux_2_{n}_x86_64" for n in GLIBC))


def requirement(package: str, constraints: str) -> str:
    """The version that the project is tested with, or any."""
    lines = [line.strip() for line in constraints.splitlines()]
    return next((line for line in lines if line.lower().startswith(f"{package}==")), package)


def download_command(package: str, folder: Path) -> list[str]:
    """What fetches one wheel for the machine."""
    platforms = [option for name in PLATFORMS for option in ("--platform", name)]
    target = ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp", *platforms]
    return [*pip(), "download", "-q", "--no-deps", *target, "-d", str(folder), package]


def build_command(architecture: str, folder: Path) -> list[str]:
    """What builds weft's wheel with its CUDA kernels for one architecture."""
    kernels = f"cmake.define.WEFT_CUDA_ARCHITECTURES={architecture}-real"
    options = ["-C", "cmake.define.WEFT_CUDA=ON", "-C", kernels, "-C", "build-dir=build/gpu-carry"]
    return [*pip(), "wheel", "-q", "--no-deps", *options, "-w", str(folder), str(ROOT)]


def pip() -> list[str]:
    return [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="90", help="of the GPU: 80, 90 or 100")
    parser.add_argument("--out", type=Path, default=ROOT / ".gpu")
    options = parser.parse_args()
    if ".".join(map(str, sys.version_info[:2])) != PYTHON:
        parser.error(f"this is Python {sys.version.split()[0]}; weft's wheel needs {PYTHON} (CARRY_PYTHON=…)")
    options.out.mkdir(parents=True, exist_ok=True)
    for old in options.out.glob("*.whl"):
        old.unlink()
    constraints = (ROOT / "constraints.txt").read_text()
    for package in CARRIED:
        pinned = requirement(package, constraints)
        if subprocess.run(download_command(pinned, options.out)).returncode != 0:
            print(f"{pinned} has no wheel for Python {PYTHON}; taking another version", file=sys.stderr)
            subprocess.run(download_command(package, options.out), check=True)
    subprocess.run(build_command(options.arch, options.out), check=True)
    wheels = sorted(options.out.glob("*.whl"))
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 2**20:7.1f} MiB  {wheel.name}")
    print(f"{sum(wheel.stat().st_size for wheel in wheels) / 2**20:7.1f} MiB in {len(wheels)} wheels")


if __name__ == "__main__":
    main()
