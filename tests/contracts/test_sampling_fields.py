"""Each numeric field of `SamplingParams` is an option of `weft generate` and a field of the server's routes."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic")

import typer
from typer.testing import CliRunner

from support.server.bodies import ASKED
from weft import SamplingParams
from weft.cli import app
from weft.core.values import ValueKind, docstrings, ranges
from weft.errors import InputError
from weft.server.errors import ApiError, api_error
from weft.server.protocol.generation import BY_ROUTE, ChatBody, CompletionBody, SamplingFields
from weft.server.protocol.responses import ResponsesBody
from weft.server.reading.responses import chat_body, input_items

RANGES = ranges(SamplingParams)
ROUTES = [ChatBody, CompletionBody, ResponsesBody]
OF_BODIES = [name for name in RANGES if name not in BY_ROUTE]
DEFAULTS = SamplingParams(temperature=1.0)

each_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.__name__)


def value_of(name: str) -> float:
    """A valid value that is not the default."""
    wanted = 2 if RANGES[name].kind is ValueKind.INTEGER else 0.5
    value = min(max(wanted, RANGES[name].lowest), RANGES[name].highest)
    assert value != getattr(DEFAULTS, name)
    return value


# -- the command line


@pytest.fixture(scope="module")
def options() -> dict[str, str]:
    """The long option of each parameter of `weft generate`."""
    command: Any = typer.main.get_command(app)
    params = command.commands["generate"].params
    return {each.name: max(each.opts, key=len) for each in params}


def test_every_field_has_an_option(options: dict[str, str]) -> None:
    assert [field.name for field in fields(SamplingParams) if field.name not in options] == []


@pytest.mark.parametrize("name", RANGES)
def test_an_option_arrives(
    name: str, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[SamplingParams] = []

    class Taken(Exception):
        pass

    def run(llm: object, guide: object, sampling: SamplingParams, *others: object) -> None:
        taken.append(sampling)
        raise Taken

    monkeypatch.setattr("weft.llm.LLM", lambda *arguments, **settings: nullcontext())
    monkeypatch.setattr(importlib.import_module("weft.cli.generate"), "Run", run)
    arguments = ["generate", "x", "--generation-config", "weft", "--stats-json", str(tmp_path / "stats.json")]
    result = CliRunner().invoke(app, [*arguments, options[name], str(value_of(name))])
    assert isinstance(result.exception, Taken), result.output
    assert taken == [replace(SamplingParams(), **{name: value_of(name)})]


def test_the_help_is_the_first_paragraph_of_the_docstring() -> None:
    docs = docstrings(SamplingParams)
    assert docs.keys() == {field.name for field in fields(SamplingParams)}
    help = " ".join(CliRunner().invoke(app, ["generate", "-h"]).output.split())
    assert f"--top-k N {docs['top_k']}" in help
    assert docs["min_tokens"].partition("\n\n")[0] in help and "stop words do not end" not in help
    assert "Multiplies --top-p after each token" in help


# -- the server


def read(route: Any, more: dict[str, Any]) -> SamplingFields:
    body: Any = route.read({**ASKED[route], **more})
    return chat_body(body, input_items(body.input, [])) if route is ResponsesBody else body


@each_route
@pytest.mark.parametrize("name", OF_BODIES)
def test_a_field_arrives(route: Any, name: str) -> None:
    value = value_of(name)
    assert read(route, {name: value}).sampling(DEFAULTS, 5) == replace(
        DEFAULTS, max_tokens=5, **{name: value}
    )
    defaults = replace(DEFAULTS, **{name: value})
    for more in ({}, {name: None}):
        assert read(route, more).sampling(defaults, 5) == replace(defaults, max_tokens=5)


@each_route
@pytest.mark.parametrize("name", OF_BODIES)
def test_an_error_names_the_field(route: Any, name: str) -> None:
    with pytest.raises(ApiError) as wrong:
        read(route, {name: "x"})
    wanted = "an integer" if RANGES[name].kind is ValueKind.INTEGER else "a number"
    assert (wrong.value.param, wrong.value.message) == (name, f"{name}: must be {wanted}, not 'x'")
    body = read(route, {name: RANGES[name].highest + 1})
    with pytest.raises(InputError) as caught:
        body.sampling(DEFAULTS, 5)
    assert api_error(caught.value, type(body).model_fields).param == name


@each_route
def test_all_tokens_as_in_vllm(route: Any) -> None:
    assert read(route, {"top_k": -1}).sampling(replace(DEFAULTS, top_k=5), 5).top_k == 0
