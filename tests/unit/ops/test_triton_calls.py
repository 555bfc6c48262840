"""Calls between the functions of Triton kernels, without running or compiling one: each has the arguments that the
called function takes. Tests that run the kernels are slow."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.kernels.interpreter import needs_triton
from weft import ops

MODULES = sorted(path.stem for path in Path(ops.__path__[0]).glob("*_triton.py"))

pytestmark = needs_triton


def functions_of(module: str) -> Iterator[Callable[..., Any]]:
    """The Python functions that Triton compiles, of a module."""
    from triton.runtime.jit import JITCallable

    for value in vars(importlib.import_module(f"weft.ops.{module}")).values():
        if isinstance(value, JITCallable) and value.fn.__module__ == f"weft.ops.{module}":
            yield value.fn


def calls_in(function: Callable[..., Any]) -> Iterator[tuple[ast.Call, Callable[..., Any]]]:
    """The calls of Triton functions in the body of one, and the functions that they call."""
    from triton.runtime.jit import JITCallable

    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called = function.__globals__.get(node.func.id)
            if isinstance(called, JITCallable):
                yield node, called.fn


def mistake(call: ast.Call, called: Callable[..., Any]) -> str:
    """The reason why the arguments of a call do not fit the called function, or nothing."""
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return ""  # their number is not known
    try:
        inspect.signature(called).bind(*call.args, **{str(each.arg): each.value for each in call.keywords})
    except TypeError as error:
        return f"{ast.unparse(call)}: {error}"
    return ""


@pytest.mark.parametrize("module", MODULES)
def test_arguments_fit_the_functions_that_are_called(module: str) -> None:
    found = [mistake(*call) for function in functions_of(module) for call in calls_in(function)]
    assert [each for each in found if each] == []


def test_calls_into_other_modules_are_found() -> None:
    """Routers and gates use the norm of another module, whose parameters once changed without them."""
    for module in ("routing_triton", "gates_triton"):
        names = {called.__name__ for function in functions_of(module) for _, called in calls_in(function)}
        assert "normed" in names
