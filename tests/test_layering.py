"""Imports point one way, and what is kept to few places stays there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "python" / "weft"

# Rank of each module or package directly under weft; an import may go down or stay within its own package.
RANKS = {
    "errors": 0,
    "core": 0,
    "config": 0,
    "forks": 0,
    "registry": 0,
    "files": 0,
    "tiny": 0,
    "_core": 0,
    "runtime": 1,
    "grammar": 1,
    "ops": 2,
    "models": 3,
    "guided": 3,
    "spec": 4,
    "engine": 5,
    "stop_words": 4,
    "spelling": 5,
    "text": 5,
    "prompts": 5,
    "executor": 6,
    "replay": 6,
    "llm": 7,
    "trace": 7,
    "bench": 8,
    "inspection": 9,
    "demo": 9,
    "cli": 10,
    "__init__": 11,
}
SIBLINGS = {
    ("core", "errors"),
    ("forks", "errors"),
    ("config", "errors"),
    ("registry", "errors"),
    ("files", "errors"),
}
EXTENSION_USERS = {"runtime", "grammar", "ops", "guided", "stop_words"}

FILES = sorted(PACKAGE.rglob("*.py"))


def area(path: Path) -> str:
    """The module or package directly under weft that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> set[str]:
    """Areas of weft that a file imports when it runs; imports for type checkers alone do not count."""
    found = set()
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            skipped.update(child for statement in node.body for child in ast.walk(statement))
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts[0] == "weft":
                found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("weft.")}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    own = area(path)
    assert own in RANKS, f"{own} has no rank; add it to RANKS where it belongs"
    for other in imported(ast.parse(path.read_text())):
        if own == "__init__" or other not in RANKS or other == own or (own, other) in SIBLINGS:
            continue
        if other == "_core":
            assert own in EXTENSION_USERS, f"{own} touches the extension; only {sorted(EXTENSION_USERS)} may"
        else:
            assert RANKS[other] < RANKS[own], f"{own} imports {other}, which is not below it"


def test_an_upward_import_is_caught() -> None:
    tree = ast.parse("from weft.engine.engine import Engine\nimport weft.cli\nfrom weft import llm")
    assert imported(tree) == {"engine", "cli", "llm"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_cuda_and_environment_are_in_few_places(path: Path) -> None:
    own, relative = area(path), str(path.relative_to(PACKAGE))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used = (node.value.id, node.attr)
            if used == ("torch", "cuda"):
                assert relative.startswith("runtime/cuda") or own == "ops", (
                    f"{relative}:{node.lineno} uses torch.cuda"
                )
            if used == ("os", "environ"):
                assert own in ("cli", "config"), f"{relative}:{node.lineno} reads os.environ"


def test_registry_keys_are_written_once() -> None:
    """The engine asks an object what it can do, never what it is called."""
    from weft import registry

    for path in FILES:
        if area(path) in ("registry", "config", "cli", "demo", "bench", "__init__"):
            continue
        text = path.read_text()
        for table in registry.TABLES.values():
            for key, target in table.items():
                if key == "auto":
                    continue  # a word of other settings, too
                if target.split(":")[0].replace(".", "/") in str(path):
                    continue
                assert f'== "{key}"' not in text, f"{path}: compares with the registry key {key!r}"
