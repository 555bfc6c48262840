"""What users import: exported from one place, documented there, and what the docs name exists."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PUBLIC = (
    "weft",
    "weft.executor",
    "weft.grammar",
    "weft.aici",
    "weft.guided",
    "weft.runtime",
    "weft.replay",
    "weft.parsing",
)
PUBLIC_MODULES = (*PUBLIC, "weft.runtime.cpu")
"""These have the names of another library beside weft's own."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# Pages for who changes weft itself; they name its insides.
OF_WEFT_ITSELF = re.compile(r"adding-a-.*|changing-.*|architecture|one-token|glossary")
MADE_UP = {"weft.spec.repeat", "weft.grammar.words", "weft.models.seed_oss"}
"""What these pages have one add."""
LOGGERS = {"weft.server.access", "weft.server.throughput"}
"""Loggers whose names are no modules (`tests/server/test_traffic_log.py`)."""
IMPORT = re.compile(r"^\s*from (weft[\w.]*) import (\([^)]*\)|[^\n#]+)", re.MULTILINE)
DOTTED = re.compile(r"\bweft(?:\.[a-z_]\w*)+(?:\.\w+)?")
LINE = re.compile(r"^- `(\w+)`: \S", re.MULTILINE)

NAMES = [(package, name) for package in PUBLIC for name in importlib.import_module(package).__all__]


def documented() -> dict[str, list[str]]:
    """The names on docs/api.md by the package whose heading they stand under."""
    parts = re.split(r"^## `([\w.]+)`$", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE)
    return {package: LINE.findall(text) for package, text in zip(parts[1::2], parts[2::2], strict=True)}


def imported_in(text: str) -> list[tuple[str, str]]:
    """Module and name of each `from weft… import …`."""
    return [
        (module, name.split(" as ")[0].strip())
        for module, names in IMPORT.findall(text)
        for name in names.strip("()").split(",")
        if name.strip()
    ]


def resolve(path: str) -> object:
    """The module or the attribute at a dotted path; `AttributeError` where there is none."""
    found: object = importlib.import_module("weft")
    for depth, part in enumerate(path.split(".")[1:], 2):
        try:
            found = getattr(found, part)
        except AttributeError:
            if not isinstance(found, ModuleType):
                raise
            try:
                found = importlib.import_module(".".join(path.split(".")[:depth]))
            except ImportError as error:
                raise AttributeError(path) from error
    return found


@pytest.mark.parametrize("package", PUBLIC)
def test_dir_shows_what_is_exported_and_nothing_else(package: str) -> None:
    module = importlib.import_module(package)
    assert dir(module) == sorted(module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)
    everything: dict[str, object] = {}
    exec(f"from {package} import *", everything)
    assert set(module.__all__) <= set(everything)


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_a_public_name_has_a_docstring(package: str, name: str) -> None:
    found = getattr(importlib.import_module(package), name)
    if inspect.isclass(found) or inspect.isroutine(found):
        assert (found.__doc__ or "").strip(), f"{package}.{name} has no docstring"
        # What dataclasses and protocols write by themselves says nothing.
        assert (
            not found.__doc__.startswith((f"{name}(", "Base class for protocol")) or " -> " in found.__doc__
        )


def test_a_public_name_lives_in_one_place() -> None:
    names = [name for _, name in NAMES]
    assert sorted(names) == sorted(set(names))
    for package, name in NAMES:
        home = getattr(getattr(importlib.import_module(package), name), "__module__", None)
        assert home is None or home.split(".")[0] in ("weft", "typing", "types", "collections"), (
            package,
            name,
            home,
        )


def test_the_page_of_names_has_each_of_them_once() -> None:
    assert {package: sorted(names) for package, names in documented().items()} == {
        package: sorted(importlib.import_module(package).__all__) for package in PUBLIC
    }


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=lambda p: p.name)
def test_what_a_page_names_exists(path: Path) -> None:
    text = path.read_text()
    for module, name in imported_in(text):
        resolve(f"{module}.{name}")
        if not OF_WEFT_ITSELF.match(path.stem):
            assert module in PUBLIC_MODULES, (
                f"{path.name} has users import from {module}, which is not public"
            )
            assert name in importlib.import_module(module).__all__, f"{path.name}: {module}.{name}"
    for dotted in DOTTED.findall(text):
        if dotted not in MADE_UP | LOGGERS:
            resolve(dotted)


def test_the_wheel_says_that_weft_is_typed() -> None:
    assert (ROOT / "python" / "weft" / "py.typed").is_file()


def test_importing_weft_stays_light_and_says_nothing() -> None:
    code = (
        "import sys, weft; weft.hostfunc, dir(weft); print({'transformers', 'xgrammar'} & set(sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert (run.stdout.strip(), run.stderr) == ("set()", "")
