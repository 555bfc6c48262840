"""docs/server.md tells of every field of a body and every setting, and names none that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from weft.server.models import ServedModelConfig
from weft.server.protocol.body import Body
from weft.server.protocol.generation import PARAMETERS, ChatBody, CompletionBody
from weft.server.protocol.responses import ResponsesBody
from weft.server.routes import controllers, operating, responses, tokens
from weft.server.routes.controllers import TagsBody
from weft.server.routes.generation import ROUTES
from weft.server.routes.tokens import DetokenizeBody, TokenizeBody
from weft.server.settings import ProgramSettings, ServerConfig

PAGE = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
BODIES: list[type[Body]] = [ChatBody, CompletionBody, ResponsesBody, TokenizeBody, DetokenizeBody, TagsBody]


def bodies(kind: type[Body]) -> Iterator[type[Body]]:
    """A body, and those within it."""
    yield kind
    for field in kind.model_fields.values():
        for name in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(name, type) and issubclass(name, Body):
                yield from bodies(name)


def is_told(name: str) -> bool:
    return re.search(rf"(?<![a-z]){name}(?![a-z])", PAGE) is not None


@pytest.mark.parametrize("body", BODIES)
def test_every_field_is_told_of(body: type[Body]) -> None:
    found = [one for kind in bodies(body) for one in kind.model_fields.items()]
    names = {field.alias or name for name, field in found}
    assert "every other numeric field of `SamplingParams`" in PAGE
    names -= PARAMETERS.keys()
    assert names and [name for name in sorted(names) if not is_told(name)] == []


@pytest.mark.parametrize("settings", [ServerConfig, ProgramSettings])
def test_every_setting_is_told_of(settings: type[ServerConfig | ProgramSettings]) -> None:
    assert [field.name for field in fields(settings) if not is_told(field.name)] == []


def test_models_settings_are_told_of() -> None:
    others = {"handles", "place"}  # [models.guides], and where the file says it
    assert [f.name for f in fields(ServedModelConfig) if f.name not in others and not is_told(f.name)] == []


def test_every_route_is_told_of() -> None:
    listed = [*ROUTES, *(r for one in (responses, tokens, operating, controllers) for r in one.router.routes)]
    found = {re.sub(r"{\w+(:path)?}", "{id}", one.path) for one in listed}  # type: ignore[attr-defined]
    told = PAGE.replace("{id or tag}", "{id}")
    assert len(found) > 12 and [path for path in sorted(found) if path not in told] == []
