"""Lets a package import each exported name on first use (PEP 562). Using one name does not import the others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def exports(
    package: str, homes: Mapping[str, Collection[str]], shown: Collection[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package. `homes` maps each defining module to its exported names.
    `dir()` lists the names in `shown`."""
    home_of = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(shown)
