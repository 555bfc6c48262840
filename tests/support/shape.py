"""Headings of folders, and the files that use a name of a library."""

from __future__ import annotations

import ast
from pathlib import Path

from support.layers import name_of


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
