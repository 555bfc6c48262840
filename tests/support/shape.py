"""What files look like from outside: their lengths, headings, constructors, and names of libraries that they use."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from support.layers import name_of


def too_long(files: Iterable[Path], root: Path, most: int) -> list[str]:
    """Files of more than `most` lines."""
    lengths = {name_of(path, root): len(path.read_text().splitlines()) for path in files if path.is_file()}
    return [
        f"{file} has {length} lines, more than {most}" for file, length in lengths.items() if length > most
    ]


def too_full(files: Iterable[Path], root: Path, most: int) -> list[str]:
    """Folders of more than `most` files."""
    folders = Counter(name_of(path.parent, root) for path in files)
    return [
        f"{folder} has {count} files, more than {most}" for folder, count in folders.items() if count > most
    ]


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


def with_many_parameters(package: Path, most: int) -> dict[str, str]:
    """Classes whose written `__init__` has more than `most` parameters beside `self`: by file and name, what to say.
    Records (dataclasses, named tuples, pydantic's models) write none."""
    return {
        f"{name_of(path, package)}:{owner.name}": f"{name_of(path, package)}:{owner.name} is made of {count} parts"
        for path in sorted(package.rglob("*.py"))
        for owner, count in _constructors(ast.parse(path.read_text()))
        if count > most
    }


def _constructors(tree: ast.AST) -> Iterator[tuple[ast.ClassDef, int]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                given = item.args
                named = len(given.posonlyargs + given.args + given.kwonlyargs) - 1
                yield node, named + (given.vararg is not None) + (given.kwarg is not None)


def uses(package: Path, module: str, name: str) -> list[tuple[str, int]]:
    """Files and lines that say `module.name`, or import it."""
    return [
        (name_of(path, package), node.lineno)
        for path in sorted(package.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if _says(node, module, name)
    ]


def _says(node: ast.AST, module: str, name: str) -> bool:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return (node.value.id, node.attr) == (module, name)
    if isinstance(node, ast.ImportFrom):
        inside = f"{module}.{name}"
        return node.module == inside or (node.module == module and name in [each.name for each in node.names])
    return isinstance(node, ast.Import) and any(each.name == f"{module}.{name}" for each in node.names)
