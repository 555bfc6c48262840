"""Writes doctest's header to the given path, and its licence to the same folder.

No package on PyPI has only the header. The wheel of `pgm-build-deps` contains it among other libraries (32 MB), so the
wheel is downloaded but not installed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "pgm-build-deps==2026.10.26.92"
FILES = {
    "doctest.h": "pgm_build_deps/doctest/include/doctest/doctest.h",
    "LICENSE.txt": "pgm_build_deps/doctest/LICENSE.txt",
}


def main(header: Path) -> None:
    """Download the wheel and extract the files. Raises `CalledProcessError` if pip fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps", "--dest", folder]
        subprocess.run([sys.executable, "-m", *command, PACKAGE], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        header.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheel) as archive:
            for name, member in FILES.items():
                (header.parent / name).write_bytes(archive.read(member))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
