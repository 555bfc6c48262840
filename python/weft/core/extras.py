"""Optional dependencies and how to install them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution

from weft.version import DISTRIBUTION


def install_hint(extra: str) -> str:
    """The command that installs the packages of an extra. pip leaves the installed weft as it is."""
    try:
        distribution(DISTRIBUTION)
    except PackageNotFoundError:
        # Then pip would look for the name on PyPI, where it is not weft's.
        return f"install the packages of weft's extra {extra!r} (pyproject.toml)"
    return f'pip install "{DISTRIBUTION}[{extra}]"'
