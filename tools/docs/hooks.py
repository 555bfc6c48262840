"""What `make docs` does to the pages on their way: mkdocs calls these functions (`hooks` in mkdocs.yml).

- docs/api.md lists every public name. Each package of it gets a page of the reference, made from docstrings, and each
  name a link to its place there.
- A link that leads out of docs/ is one to a file of the repository, which the site has not: its text is left.
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
"""Classes whose fields belong to their bases."""
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
    """Link the names, and leave out links that lead out."""
    if page.file.src_uri == NAMES:
        markdown = linked(markdown)
    return OUTWARD.sub(lambda link: "" if link[1] else link[2], markdown)


def packages(text: str) -> list[tuple[str, list[str]]]:
    """Each package of the page of names, with its names."""
    parts = PACKAGE.split(text)
    return [(package, NAME.findall(part)) for package, part in zip(parts[1::2], parts[2::2], strict=True)]


def reference(package: str, names: list[str]) -> str:
    """The page of a package, as mkdocstrings reads it."""
    parts = [f"::: {package}.{name}" + (SHOW_INHERITED if name in INHERITING else "") for name in names]
    return "\n\n".join([f"# {package}", *parts]) + "\n"


def linked(text: str) -> str:
    """The page of names with a link from each to the reference."""
    for package, names in packages(text):
        head, heading, rest = text.partition(f"## `{package}`\n")
        part, *others = re.split(r"(?=^## `)", rest, maxsplit=1, flags=re.MULTILINE)
        for name in names:
            part = part.replace(f"- `{name}`: ", f"- [`{name}`][{package}.{name}]: ", 1)
        text = head + heading + part + "".join(others)
    return text
