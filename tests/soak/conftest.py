"""What the soak is made of once: the model, its questions with their answers, random drafters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.questions import Pool
from support.engine.drafters import save_random_drafters
from support.engine.references import load
from weft.config import package_model_path
from weft.runtime import cpu


@pytest.fixture(scope="session")
def pool() -> Pool:
    return Pool.make(load(package_model_path()))


@pytest.fixture(scope="session")
def drafters(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), pool.checkpoint)


@pytest.fixture
def schedule(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leaves the CPU runtime as it was."""
    yield
    cpu.synchronize()
    cpu.set_schedule("inline")
