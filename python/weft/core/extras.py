"""Packages that only some of weft needs, and how to get them."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

REQUIREMENT = re.compile(r"""(?P<package>[^;]+?)\s*;\s*extra\s*==\s*['"](?P<extra>[\w-]+)['"]""")


def install_hint(extra: str) -> str:
    """The command that installs what an extra of weft's needs. It names the packages, since weft's own name on PyPI
    belongs to another project."""
    try:
        found = [REQUIREMENT.fullmatch(line) for line in requires("weft") or ()]
    except PackageNotFoundError:
        found = []
    packages = [f'"{one["package"]}"' for one in found if one is not None and one["extra"] == extra]
    return " ".join(["pip install", *packages]) if packages else f"install what weft's extra {extra!r} names"
