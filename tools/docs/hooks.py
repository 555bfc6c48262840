"""Hooks of mkdocs for `make docs` (`hooks` in mkdocs.yml).

- docs/api.md lists every public name. Each of its packages gets a reference page, made from docstrings, and each name
  a link to its entry there.
- A link out of docs/ points to a file of the repository, which the site lacks: only its text is kept.
- A link whose text is a file's name, which is what a reader of the repository looks for, gets the heading it leads to.
"""

from __future__ import annotations

import re
from pathlib import Path

from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

NAMES = "api.md"
PACKAGE = re.compile(r"^## `([\w.]+)`$", re.MULTILINE)
NAME = re.compile(r"^- `(\w+)`(?=: )", re.MULTILINE)
INHERITING = ("EngineConfig",)
"""Classes that inherit their fields."""
SHOW_INHERITED = "\n    options:\n      inherited_members: true"
FILE_LINK = re.compile(r"\[`?([\w-]+\.md)`?\]\(([\w-]+\.md)(?:#([\w-]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
OUTWARD = re.compile(r"(!?)\[([^]]*)\]\(\.\./[^)]*\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference."""
    text = (Path(config.docs_dir) / NAMES).read_text()
    for package, names in packages(text):
        page = reference(package, names)
        files.append(File.generated(config, f"reference/{package}.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link the names, turn links out of docs/ into text, and give links the titles of their pages."""
    if page.file.src_uri == NAMES:
        markdown = linked(markdown)
    markdown = FILE_LINK.sub(lambda link: titled(Path(config.docs_dir), *link.groups()), markdown)
    return OUTWARD.sub(lambda link: "" if link[1] else link[2], markdown)


def titled(folder: Path, text: str, name: str, anchor: str | None) -> str:
    """Return a link to a page of `folder`, or to a heading of it, with that heading as its text."""
    headings = HEADING.findall((folder / name).read_text())
    fitting = [heading for heading in headings if slugify(heading, "-") == anchor] if anchor else headings
    target = f"{name}#{anchor}" if anchor else name
    return f"[{fitting[0] if fitting else text}]({target})"


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
