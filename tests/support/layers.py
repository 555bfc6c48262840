"""Who imports whom: the arrows between files of either language, and what of them a layering forbids.

Files are named by their path below a root: "grammar/guide" for Python, "guided/state.h" for C++. A room is a folder, or
a single file that has a place of its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
NATIVE = {".h", ".cpp", ".cu", ".cuh"}


class Arrow(NamedTuple):
    """One file imports or includes another, or something that is none of ours."""

    source: str
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line} takes {self.target}"


def python_arrows(package: Path) -> list[Arrow]:
    """Every import of a Python package, also within functions and under TYPE_CHECKING. What is not of the package is
    named as it is imported ("torch.cuda")."""
    files = {name_of(path, package): path for path in package.rglob("*.py")}
    return [
        Arrow(source, target, line)
        for source, path in sorted(files.items())
        for module, line in _imports(ast.parse(path.read_text()), source, package.name)
        if (target := _target(module, package.name, files)) != source
    ]


def name_of(path: Path, root: Path) -> str:
    """A file's path below `root`, without the suffix of Python."""
    return path.relative_to(root).as_posix().removesuffix(".py")


def _imports(tree: ast.AST, source: str, package: str) -> Iterator[tuple[str, int]]:
    """The modules that a file imports, with lines; a name that is imported from a module counts as one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            around = [package, *source.split("/")][: -node.level] if node.level else []
            module = ".".join([*around, *([node.module] if node.module else [])])
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


def _target(module: str, package: str, files: Mapping[str, Path]) -> str:
    """The file that has the module, or the name in one, that an import names."""
    if module.split(".")[0] != package:
        return module
    parts = module.split(".")[1:]
    for length in range(len(parts), -1, -1):
        name = "/".join(parts[:length])
        for file in (name, f"{name}/__init__".removeprefix("/")):
            if file in files:
                if file == "__init__" and parts[:1] == ["_core"]:
                    return "_core"
                return file
    return parts[0] if parts else "__init__"


def include_arrows(root: Path) -> list[Arrow]:
    """Every `#include` below `root`: its own files by their paths, others as they are written."""
    arrows = []
    for path in sorted(root.rglob("*")):
        if path.suffix not in NATIVE:
            continue
        text = path.read_text()
        for match in INCLUDE.finditer(text):
            places = (path.parent / match[2], root / match[2], root / "include" / match[2])
            own = next((place.resolve() for place in places if place.is_file()), None)
            target = match[2] if own is None else name_of(own, root.resolve())
            arrows.append(Arrow(name_of(path, root), target, text.count("\n", 0, match.start(2)) + 1))
    return arrows


def room_of(file: str, rooms: Iterable[str]) -> str | None:
    """The room of a file: itself or its folder, where that is one."""
    folder = file.rpartition("/")[0]
    return next((room for room in (file, folder) if room and room in rooms), None)


def without_room(files: Iterable[str], floors: Sequence[str]) -> list[str]:
    """Files that no floor ranks."""
    rooms = ranks_of(floors)
    return [f"{file} has no rank; add it or its folder" for file in files if room_of(file, rooms) is None]


def ranks_of(floors: Sequence[str]) -> dict[str, int]:
    """The rank of each room, of floors from the ground up: rooms of one floor do not know each other."""
    return {room: rank for rank, floor in enumerate(floors) for room in floor.split()}


def upward(arrows: Iterable[Arrow], floors: Sequence[str]) -> list[str]:
    """Arrows between rooms that do not lead to a lower floor."""
    ranks = ranks_of(floors)
    found = []
    for arrow in arrows:
        source, target = room_of(arrow.source, ranks), room_of(arrow.target, ranks)
        if source is None or target is None or source == target:
            continue
        if ranks[target] >= ranks[source]:
            found.append(f"{arrow}, which is not below it")
    return found


def circles(arrows: Iterable[Arrow]) -> list[str]:
    """Each group of files that all import each other, directly or through others."""
    following: dict[str, set[str]] = {}
    for arrow in arrows:
        following.setdefault(arrow.source, set()).add(arrow.target)
    reached = {file: _reached(file, following) for file in following}
    groups = {
        tuple(sorted(other for other in reached[file] if file in reached.get(other, ())))
        for file in following
        if file in reached[file]
    }
    return [f"these files import each other: {', '.join(group)}" for group in sorted(groups)]


def _reached(start: str, following: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    pending = [start]
    while pending:
        new = following.get(pending.pop(), set()) - found
        found |= new
        pending += new
    return found


def strangers(arrows: Iterable[Arrow], leaves: Mapping[str, str]) -> list[str]:
    """Arrows to a leaf from files that may not know it. `leaves` names, for each leaf, the rooms, files or folders that
    may, in one text."""
    found = []
    for leaf, friends in leaves.items():
        may = (leaf, *friends.split())
        found += [
            f"{arrow}, a leaf"
            for arrow in arrows
            if is_within(arrow.target, leaf) and not any(is_within(arrow.source, room) for room in may)
        ]
    return found


def is_within(file: str, room: str) -> bool:
    """Whether a file is the room, or lies anywhere in it."""
    return file == room or file.startswith(f"{room}/") or (file.rpartition(".")[0] == room)
