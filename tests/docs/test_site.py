"""`make docs`: the site is built without a warning, has every public name, loads nothing from elsewhere, and reads well
in a browser, also as files."""

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
from support.server.browser import chromium, needs_chromium
from test_public_api import PUBLIC
from weft import EngineConfig, SamplingParams

pytest.importorskip("mkdocs")
pytestmark = pytest.mark.slow

LOADED = re.compile(r"""<(?:link|script|img|iframe)\b[^>]*?\b(?:href|src)=["']?([^"' >]+)""")

OVERFLOWING = """[...document.querySelectorAll("pre > code")].filter(c => c.scrollWidth > c.clientWidth + 1)
  .map(c => c.textContent)"""
"""The code that does not fit into its box."""


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


def test_links_have_titles_and_no_names_of_files(site: Path) -> None:
    for page in site.glob("*.html"):
        assert re.findall(r">[\w-]+\.md</a>", page.read_text()) == [], page.name
    text = (site / "executor.html").read_text()
    assert 'href="executor-fields.html">The Executor, field by field</a>' in text
    assert 'href="grammars.html#how-to-choose">How to choose</a>' in (site / "benchmarks.html").read_text()


@needs_chromium
def test_pages_that_are_opened_as_files_can_be_searched_and_fit(site: Path) -> None:
    pytest.importorskip("playwright", reason="needs chromium: pip install playwright")
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.goto((site / "index.html").as_uri())
        page.locator("input.md-search__input").press_sequentially("lookahead", delay=20)
        page.wait_for_selector(".md-search-result__item")
        assert page.locator(".md-search-result__item").filter(has_text="Drafting").count() > 0
        page.keyboard.press("Escape")
        assert page.locator("body").get_attribute("data-md-color-scheme") == "default"
        for name in ("light", "dark"):
            page.locator(".md-header__option label:visible").click()
            page.wait_for_selector(f"label[title^='Theme: {name}']:visible")
        assert page.locator("body").get_attribute("data-md-color-scheme") == "slate"
        for file in sorted(site.glob("*.html")):
            page.goto(file.as_uri())
            assert page.evaluate(OVERFLOWING) == [], file.name
