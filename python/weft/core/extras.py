"""Optional dependencies and how to install them."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

REQUIREMENT = re.compile(r"""(?P<package>[^;]+?)\s*;\s*extra\s*==\s*['"](?P<extra>[\w-]+)['"]""")


def install_hint(extra: str) -> str:
    """The command that installs the packages of an extra of weft."""
    try:
        matches = [REQUIREMENT.fullmatch(line) for line in requires("weft") or ()]
    except PackageNotFoundError:
        matches = []
    # Not "weft[extra]": the name on PyPI belongs to another project.
    packages = [f'"{match["package"]}"' for match in matches if match is not None and match["extra"] == extra]
    return " ".join(["pip install", *packages]) if packages else f"install what weft's extra {extra!r} names"
