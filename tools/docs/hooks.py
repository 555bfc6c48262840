"""Hooks of mkdocs for `make docs` (`hooks` in mkdocs.yml).

- docs/api.md lists every public name. Each of its packages gets a reference page, made from docstrings, and each name
  a link to its entry there.
- A link out of docs/ points to a file of the repository, which the site lacks: only its text is kept.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

NAMES = "api.md"
PACKAGE = re.compile(r"^## `([\w.]+)`$", re.MULTILINE)
NAME = re.compile(r"^- `(\w+)`(?=: )", re.MULTILINE)
INHERITING = ("EngineConfig",)
"""Classes that inherit their fields."""
SHOW_INHERITED = "\n    options:\n      inherited_members: true"
OUTWARD = re.compile(r"(!?)\[([^]]*)\]\(\.\./[^)]*\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference."""
    text = (Path(config.docs_dir) / NAMES).read_text()
    for package, names in packages(text):
        page = reference(package, names)
        files.append(File.generated(config, f"reference/{package}.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link the names, and turn links out of docs/ into text."""
    if page.file.src_uri == NAMES:
        markdown = linked(markdown)
    return OUTWARD.sub(lambda link: "" if link[1] else link[2], markdown)


def packages(text: str) -> list[tuple[str, list[str]]]:
    """Return each package of docs/api.md with its names."""
    parts = PACKAGE.split(text)
    return [(package, NAME.findall(part)) for package, part in zip(parts[1::2], parts[2::2], strict=True)]


def reference(package: str, names: list[str]) -> str:
    """Return the page of a package in the form that mkdocstrings reads."""
    parts = [f"::: {package}.{name}" + (SHOW_INHERITED if name in INHERITING else "") for name in names]
    return "\n\n".join([f"# {package}", *parts]) + "\n"


def linked(text: str) -> str:
    """Return docs/api.md with a link from each name to its reference."""
    for package, names in packages(text):
        head, heading, rest = text.partition(f"## `{package}`\n")
        part, *others = re.split(r"(?=^## `)", rest, maxsplit=1, flags=re.MULTILINE)
        for name in names:
            part = part.replace(f"- `{name}`: ", f"- [`{name}`][{package}.{name}]: ", 1)
        text = head + heading + part + "".join(others)
    return text
