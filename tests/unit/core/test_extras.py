"""How to get packages that only some of weft needs."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

import weft
from weft.core import extras
from weft.core.extras import install_hint
from weft.version import DISTRIBUTION

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_name_of_the_distribution_is_that_of_pyproject() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert importlib.metadata.version(DISTRIBUTION) == weft.__version__ == PROJECT["version"]


def test_the_hint_names_the_extra_of_the_distribution() -> None:
    assert install_hint("serve") == f'pip install "{DISTRIBUTION}[serve]"'
    files = list(ROOT.glob("python/weft/**/*.py")) + list(ROOT.glob("benchmarks/weft_bench/**/*.py"))
    named = {name for file in files for name in re.findall(r"install_hint\([\"'](\w+)", file.read_text())}
    assert named and named <= set(PROJECT["optional-dependencies"])


def test_where_weft_is_not_installed_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", missing)
    assert install_hint("serve") == "install the packages of weft's extra 'serve' (pyproject.toml)"


def test_nothing_tells_a_user_to_install_the_project_that_has_wefts_name_on_pypi() -> None:
    files = [*ROOT.glob("python/weft/**/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    found = [
        str(file) for file in files if re.search(r"pip install ['\"]?weft(?:\[|[\s'\"]|$)", file.read_text())
    ]
    assert found == []
