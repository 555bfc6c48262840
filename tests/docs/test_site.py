"""`make docs`: the site is built without a warning, has every public name, and loads nothing from elsewhere."""

from __future__ import annotations

import dataclasses
import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.docs.reader import ROOT
from test_public_api import PUBLIC
from weft import EngineConfig, SamplingParams

pytest.importorskip("mkdocs")
pytestmark = pytest.mark.slow

LOADED = re.compile(r"""<(?:link|script|img|iframe)\b[^>]*?\b(?:href|src)=["']?([^"' >]+)""")


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(site)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("site")
    run = build(ROOT / "mkdocs.yml", made)
    assert run.returncode == 0, run.stderr
    return made


@pytest.mark.parametrize("package", PUBLIC)
def test_the_reference_has_every_public_name(site: Path, package: str) -> None:
    page = (site / "reference" / f"{package}.html").read_text()
    names = importlib.import_module(package).__all__
    assert [name for name in names if f'id="{package}.{name}"' not in page] == []


@pytest.mark.parametrize("settings", [EngineConfig, SamplingParams])
def test_the_reference_has_every_setting(site: Path, settings: Any) -> None:
    page = (site / "reference" / "weft.html").read_text()
    names = [field.name for field in dataclasses.fields(settings)]
    assert [name for name in names if f'id="weft.{settings.__name__}.{name}"' not in page] == []


def test_the_page_of_names_leads_to_the_reference(site: Path) -> None:
    page = (site / "api.html").read_text()
    assert 'href="reference/weft.html#weft.LLM"' in page
    assert 'href="reference/weft.replay.html#weft.replay.Difference"' in page


def test_a_reader_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = {
        (page.name, target) for page in site.rglob("*.html") for target in LOADED.findall(page.read_text())
    }
    assert ("index.html", "site.css") in loaded
    assert [one for one in loaded if re.match(r"(\w+:)?//", one[1])] == []


def test_every_page_is_in_the_navigation(site: Path) -> None:
    index = (site / "index.html").read_text()
    pages = {page.relative_to(site).as_posix() for page in site.rglob("*.html")} - {"404.html", "index.html"}
    assert [page for page in sorted(pages) if f'href="{page}"' not in index] == []


def test_a_wrong_link_ends_the_build(tmp_path: Path) -> None:
    for name in ("docs", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    (tmp_path / "python").symlink_to(ROOT / "python")
    with (tmp_path / "docs" / "logging.md").open("a") as page:
        page.write("\n[a](sampling.md#no-such-heading) and [`b`][weft.NoSuchName]\n")
    run = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert run.returncode != 0
    assert "no-such-heading" in run.stderr and "weft.NoSuchName" in run.stderr
