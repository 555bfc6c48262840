"""Imports and includes point one way, and what is kept to few places stays there. The rules are `support/floors.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from support.floors import (
    EXTENSION_USERS,
    NATIVE_FLOORS,
    NATIVE_LEAVES,
    NO_TORCH,
    PYTHON_FLOORS,
    PYTHON_IN_NATIVE,
    PYTHON_LEAVES,
)
from support.layers import (
    NATIVE,
    Arrow,
    circles,
    include_arrows,
    is_within,
    name_of,
    python_arrows,
    strangers,
    upward,
    without_room,
)
from support.shape import uses, without_docstring, without_rule

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "python" / "weft"
CSRC = ROOT / "csrc"


@cache
def imports() -> list[Arrow]:
    return python_arrows(PACKAGE)


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
