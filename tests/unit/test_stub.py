"""The committed stub of the extension says what the extension has."""

from __future__ import annotations

import ast
from pathlib import Path

from nanobind.stubgen import StubGen

import weft
from weft import _core


def test_the_stub_is_current() -> None:
    generated = StubGen(_core)
    generated.put(_core)
    committed = (Path(weft.__file__).parent / "_core.pyi").read_text()
    assert ast.dump(ast.parse(generated.get())) == ast.dump(ast.parse(committed)), "run `make stubs`"
