"""How to get packages that only some of weft needs."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

from weft.core import extras
from weft.core.extras import install_hint

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_every_package_of_an_extra_is_named(extra: str) -> None:
    names = [re.split(r"[\[<>=]", one)[0] for one in PROJECT["optional-dependencies"][extra]]
    assert [re.split(r"[\[<>=]", one.strip('"'))[0] for one in install_hint(extra).split()[2:]] == names


def test_where_weft_is_not_installed_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", missing)
    assert install_hint("serve") == "install what weft's extra 'serve' names"


def test_nothing_tells_a_user_to_install_the_project_that_has_wefts_name_on_pypi() -> None:
    root = Path(__file__).parents[3]
    files = [*root.glob("python/weft/**/*.py"), *root.glob("docs/*.md"), root / "README.md"]
    found = [str(one) for one in files if re.search(r"pip install ['\"]?weft\[", one.read_text())]
    assert not found
