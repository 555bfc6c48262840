"""The name that pip knows the package by, and its version."""

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "weft-decoding"
"""As in pyproject.toml. The import name and the command are weft; on PyPI that name belongs to another project."""

try:
    __version__ = version(DISTRIBUTION)
except PackageNotFoundError:  # imported from a folder on PYTHONPATH
    __version__ = "unknown"
