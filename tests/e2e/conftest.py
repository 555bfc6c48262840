"""Models, prompts and references that the end-to-end tests share."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from support.engine.checkpoints import MODEL_TYPES, save_checkpoint, save_eagle3
from support.engine.oracle import Reference
from support.engine.references import Cached, Checkpoint, load
from support.grammar.guides import GUIDES
from weft.config import package_model_path
from weft.runtime import cpu
from weft.tiny.records import example


@pytest.fixture(scope="session")
def tiny() -> Checkpoint:
    return load(package_model_path())


@pytest.fixture(scope="session", params=sorted(MODEL_TYPES))
def random_checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = tmp_path_factory.mktemp("checkpoint") / request.param
    model = save_checkpoint(path, request.param)
    save_eagle3(
        path / "eagle3", model.config.vocab_size, model.config.hidden_size, model.config.num_hidden_layers
    )
    return load(path)


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    rng = random.Random(20)
    return [example(rng, "heldout").prompt for _ in range(len(GUIDES))]


@pytest.fixture(scope="session")
def tiny_references(tiny: Checkpoint, prompts: list[str]) -> Cached:
    """Reference i: prompt i under guide i, or without a guide. Computed once."""

    @cache
    def get(i: int, guided: bool) -> Reference:
        return tiny.reference(prompts[i], GUIDES[i] if guided else None)

    return get


@pytest.fixture
def schedules() -> Iterator[Callable[..., None]]:
    """Sets the CPU runtime's schedule; the ordinary one is back behind the test."""
    yield cpu.set_schedule
    cpu.synchronize()
    cpu.set_schedule("inline")
