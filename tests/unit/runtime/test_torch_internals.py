"""torch's private names are there, or it is clear which are not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import weft
from weft.runtime import torch_internals

PRIVATE = re.compile(r"\btorch(\.\w+)*\._\w+|from torch[\w.]* import .*\b_\w+")


def test_the_installed_torch_has_every_private_name_that_weft_uses() -> None:
    assert torch_internals.missing() == []


def test_missing_names_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "_neg_view")
    monkeypatch.setitem(torch_internals.Operation.__annotations__, "is_gone", "bool")
    assert torch_internals.missing() == ["torch._neg_view", "OpOverload.is_gone"]


def test_a_call_of_a_missing_name_names_it() -> None:
    """weft can be imported all the same."""
    program = """
import torch
del torch._neg_view
import weft.runtime.cpu
from weft.runtime.torch_internals import neg_view
neg_view(torch.ones(1))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "has no torch._neg_view, which weft needs" in done.stderr.splitlines()[-1]
    assert "InterfaceError" in done.stderr.splitlines()[-1]


def test_private_names_are_used_in_one_file_only() -> None:
    root = Path(weft.__file__).parent
    found = {
        f"{path.relative_to(root)}: {match[0]}"
        for path in root.rglob("*.py")
        if path.name != "torch_internals.py"
        for match in PRIVATE.finditer(path.read_text())
        if match[0] != "torch.utils._python_dispatch" and "__" not in match[0]
    }
    assert found == set()
