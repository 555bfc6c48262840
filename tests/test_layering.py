"""Imports and includes point one way, and what is kept to few places stays there. The rules are `support/floors.py`."""

from __future__ import annotations

import ast
import re
import runpy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from support.floors import (
    EXTENSION_USERS,
    FRONTS,
    NATIVE_FLOORS,
    NATIVE_LEAVES,
    NO_TORCH,
    PYTHON_FLOORS,
    PYTHON_IN_NATIVE,
    PYTHON_LEAVES,
)

# -- Who imports whom: the arrows between files of either language, and what of them a layering forbids

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
        for module, line in _imports(nodes(path.read_text()), source, package.name)
        if (target := _target(module, package.name, files)) != source
    ]


@cache
def nodes(text: str) -> list[ast.AST]:
    """All nodes of a Python text, which several tests look through."""
    return list(ast.walk(ast.parse(text)))


def name_of(path: Path, root: Path) -> str:
    """A file's path below `root`, without the suffix of Python."""
    return path.relative_to(root).as_posix().removesuffix(".py")


def _imports(nodes: Iterable[ast.AST], source: str, package: str) -> Iterator[tuple[str, int]]:
    """The modules that a file imports, with lines; a name that is imported from a module counts as one."""
    for node in nodes:
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


# -- Headings of folders, and the files that use a name of a library


def without_docstring(package: Path) -> list[str]:
    """Packages whose `__init__.py` does not say what they are."""
    folders = {path.parent for path in package.rglob("*.py")}
    return [
        f"{name_of(folder, package)}/__init__.py has no docstring, or is not there"
        for folder in sorted(folders)
        if not (file := folder / "__init__.py").is_file()
        or not ast.get_docstring(ast.parse(file.read_text()))
    ]


def without_rule(folder: Path) -> list[str]:
    """CMakeLists.txt that do not begin with a comment."""
    return [
        f"{name_of(path, folder)} does not begin with the folder's rule, as a comment"
        for path in sorted(folder.rglob("CMakeLists.txt"))
        if not path.read_text().startswith("# ")
    ]


def uses(package: Path, module: str, name: str) -> list[tuple[str, int]]:
    """Files and lines that say `module.name`, or import it."""
    return [
        (name_of(path, package), node.lineno)
        for path in sorted(package.rglob("*.py"))
        for node in nodes(path.read_text())
        if _says(node, module, name)
    ]


def _says(node: ast.AST, module: str, name: str) -> bool:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return (node.value.id, node.attr) == (module, name)
    if isinstance(node, ast.ImportFrom):
        inside = f"{module}.{name}"
        return node.module == inside or (node.module == module and name in [each.name for each in node.names])
    return isinstance(node, ast.Import) and any(each.name == f"{module}.{name}" for each in node.names)


ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "python" / "weft"
CSRC = ROOT / "csrc"


@cache
def imports() -> list[Arrow]:
    """All imports, but for those that a front holds in its functions. Python itself refuses them at a module's top,
    as they lead back to the front."""
    return [
        arrow
        for arrow in python_arrows(PACKAGE)
        if not any(is_within(arrow.target, room) for room in FRONTS.get(arrow.source, ()))
    ]


@cache
def includes() -> list[Arrow]:
    return include_arrows(CSRC)


def none(offences: Iterable[str]) -> None:
    """No offence; or all of them in one message."""
    found = sorted(offences)
    assert not found, "\n".join(["", *found])


def native_files() -> list[Path]:
    return [path for path in CSRC.rglob("*") if path.suffix in NATIVE]


def names_python(arrow: Arrow) -> bool:
    return arrow.target == "Python.h" or arrow.target.startswith("nanobind/")


def knows_python(arrows: Iterable[Arrow]) -> list[str]:
    """Includes of Python in rooms that must not know it."""
    return [
        f"{arrow}, and is not of {', '.join(PYTHON_IN_NATIVE)}"
        for arrow in arrows
        if names_python(arrow) and not any(is_within(arrow.source, room) for room in PYTHON_IN_NATIVE)
    ]


def knows_torch(arrows: Iterable[Arrow]) -> list[str]:
    """Imports of torch in rooms that decide, and compute nothing on a device."""
    return [
        f"{arrow}, but its room does without torch"
        for arrow in arrows
        if arrow.target.split(".")[0] == "torch" and any(is_within(arrow.source, room) for room in NO_TORCH)
    ]


# -- the tree as it is


def test_every_file_has_a_room() -> None:
    none(without_room((name_of(path, PACKAGE) for path in PACKAGE.rglob("*.py")), PYTHON_FLOORS))
    none(without_room((name_of(path, CSRC) for path in native_files()), NATIVE_FLOORS))


def test_imports_and_includes_point_down() -> None:
    none(upward(imports(), PYTHON_FLOORS) + upward(includes(), NATIVE_FLOORS))


def test_no_files_import_each_other() -> None:
    none(circles(imports()) + circles(includes()))


def test_leaves_are_known_to_few() -> None:
    none(strangers(imports(), PYTHON_LEAVES) + strangers(includes(), NATIVE_LEAVES))


def test_only_bindings_know_python() -> None:
    none(knows_python(includes()))


def test_what_decides_does_without_torch() -> None:
    none(knows_torch(imports()))


def test_the_extension_cuda_and_the_environment_are_in_few_places() -> None:
    none(
        f"{arrow}; only {', '.join(EXTENSION_USERS)} may"
        for arrow in imports()
        if arrow.target == "_core" and not any(is_within(arrow.source, room) for room in EXTENSION_USERS)
    )
    none(
        f"{file}:{line} uses torch.cuda; only runtime/cuda* and ops may"
        for file, line in uses(PACKAGE, "torch", "cuda")
        if not file.startswith(("runtime/cuda", "ops/"))
    )
    none(
        f"{file}:{line} reads the environment; only cli and config may"
        for name in ("environ", "getenv")
        for file, line in uses(PACKAGE, "os", name)
        if not file.startswith(("cli/", "config/"))
    )


def test_every_folder_says_what_it_is() -> None:
    none(without_docstring(PACKAGE) + without_rule(CSRC))


def test_registry_keys_are_written_once() -> None:
    """The engine asks an object what it can do, never what it is called."""
    from weft import registry

    words = {
        f'== "{key}"': (key, target.partition(":")[0].replace(".", "/"))
        for table in (registry.GRAMMARS, registry.GUIDES, registry.DRAFTERS, registry.MODELS)
        for key, target in table.items()
        if key != "auto"  # a word of other settings, too
    }
    may = ("registry", "config", "cli", "demo", "bench", "__init__")
    texts = {
        path: path.read_text()
        for path in PACKAGE.rglob("*.py")
        if not any(is_within(name_of(path, PACKAGE), room) for room in may)
    }
    none(
        f"{name_of(path, PACKAGE)} compares with the registry's key {key!r}"
        for path, text in texts.items()
        for word, (key, file) in words.items()
        if file not in str(path) and word in text
    )


# -- each check catches what is planted


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of three rooms: low, high, and a leaf."""
    for file in ("low/a", "low/b", "high/c", "leaf/d"):
        plant(tmp_path / "weft" / f"{file}.py")
        plant(tmp_path / "weft" / file.split("/")[0] / "__init__.py", '"""A room."""')
    return tmp_path / "weft"


FLOORS = ["low", "high leaf"]


def plant(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.mark.parametrize(
    "text",
    [
        "from weft.high.c import thing",
        "from weft.high import c",
        "import weft.high.c",
        "from ..high import c",
        "def late():\n    from weft.high import c",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from weft.high.c import Thing",
        "from weft.leaf.d import thing",
    ],
)
def test_an_upward_import_is_caught(package: Path, text: str) -> None:
    assert not upward(python_arrows(package), FLOORS)
    plant(package / "high" / "c.py", "from weft.low.a import thing")
    assert not upward(python_arrows(package), FLOORS)
    plant(package / "low" / "a.py", text)
    assert len(upward(python_arrows(package), FLOORS)) == 1


def test_a_room_beside_is_not_below(package: Path) -> None:
    plant(package / "high" / "c.py", "from weft.leaf import d")
    assert upward(python_arrows(package), FLOORS) == ["high/c:1 takes leaf/d, which is not below it"]


def test_a_file_without_a_room_is_caught(package: Path) -> None:
    plant(package / "low" / "deep" / "e.py")
    files = [name_of(path, package) for path in package.rglob("*.py")]
    assert without_room(files, FLOORS) == ["low/deep/e has no rank; add it or its folder"]
    assert not without_room(files, [*FLOORS, "low/deep/e"])


def test_a_circle_is_caught(package: Path) -> None:
    plant(package / "low" / "a.py", "from weft.low.b import thing")
    assert not circles(python_arrows(package))
    plant(package / "low" / "b.py", "def late():\n    from weft.low import a")
    assert circles(python_arrows(package)) == ["these files import each other: low/a, low/b"]


def test_a_stranger_to_a_leaf_is_caught(package: Path) -> None:
    plant(package / "high" / "c.py", "from weft.leaf.d import thing")
    assert strangers(python_arrows(package), {"leaf": "low"}) == ["high/c:1 takes leaf/d, a leaf"]
    assert not strangers(python_arrows(package), {"leaf": "high/c"})


def test_wrong_includes_are_caught(tmp_path: Path) -> None:
    plant(tmp_path / "include" / "weft" / "matcher.h")
    plant(tmp_path / "driver" / "driver.h", '#include <weft/matcher.h>\n#include "kernels/mask.h"')
    plant(tmp_path / "kernels" / "mask.h", '#include "rows.h"\n#include <Python.h>')
    plant(tmp_path / "kernels" / "rows.h", '#pragma once\n  #  include "mask.h"')
    plant(tmp_path / "bindings" / "mask.cpp", "#include <nanobind/nanobind.h>")
    arrows = include_arrows(tmp_path)
    floors = ["include/weft driver", "kernels", "bindings"]
    assert upward(arrows, floors) == [
        "driver/driver.h:1 takes include/weft/matcher.h, which is not below it",
        "driver/driver.h:2 takes kernels/mask.h, which is not below it",
    ]
    assert circles(arrows) == ["these files import each other: kernels/mask.h, kernels/rows.h"]
    assert knows_python(arrows) == [
        "kernels/mask.h:2 takes Python.h, and is not of hostfunc, grammar/python, bindings"
    ]


def test_torch_is_caught_where_it_is_not_needed(tmp_path: Path) -> None:
    plant(tmp_path / "weft" / "engine" / "kv" / "cache.py", "from torch import Tensor")
    plant(tmp_path / "weft" / "engine" / "device.py", "import torch")
    assert [offence.split(":")[0] for offence in knows_torch(python_arrows(tmp_path / "weft"))] == [
        "engine/kv/cache"
    ]


def test_uses_of_a_name_are_caught(package: Path) -> None:
    plant(package / "low" / "a.py", "import os\nos.environ['A']")
    plant(package / "low" / "b.py", "from os import environ")
    plant(package / "high" / "c.py", "import os\nos.path")
    assert uses(package, "os", "environ") == [("low/a", 2), ("low/b", 1)]


def test_folders_without_a_heading_are_caught(package: Path) -> None:
    plant(package / "low" / "__init__.py", "x = 1")
    plant(package / "CMakeLists.txt", "project(weft)")
    assert without_docstring(package)[-1] == "low/__init__.py has no docstring, or is not there"
    assert without_rule(package) == ["CMakeLists.txt does not begin with the folder's rule, as a comment"]


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by their last name."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


MOST_PRIVATE_NAMES = 90
"""Places where tests reach a private name of the product. Lower it with each that goes: `tools/signs.py --private`."""


def test_tests_reach_fewer_and_fewer_private_names() -> None:
    private_names = runpy.run_path(str(ROOT / "tools" / "signs.py"))["private_names"]
    found = [
        f"{name_of(path, ROOT)}:{line} reaches {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line, name in private_names(path)
    ]
    assert len(found) <= MOST_PRIVATE_NAMES, "\n".join(found)
