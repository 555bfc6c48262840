"""LLMs, and records of their engines, that several files of this folder need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.engine.drafters import DRAFTERS, save_random_drafters
from support.engine.references import Checkpoint
from weft import LLM, EngineConfig, Speculation
from weft.engine.engine import Engine
from weft.engine.stats import StepRecord


@pytest.fixture(scope="module")
def make_llm(tiny: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LLM]]:
    """Makes LLMs of each kind of drafter and engine, once."""
    random_drafters = save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)
    made: dict[str, LLM] = {}

    def build(kind: str | None = None, **engine: Any) -> LLM:
        key = f"{kind} {engine}"
        if key not in made:
            made[key] = LLM(
                tiny.path,
                device="cpu",
                speculation=Speculation.none() if kind is None else DRAFTERS[kind](random_drafters, 3),
                engine=EngineConfig(
                    max_batch=4, max_seq_len=160, prefill_chunk=16, gather_generation_logits=True, **engine
                ),
            )
        return made[key]

    yield build
    for llm in made.values():
        llm.close()


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[StepRecord]:
    """The records of all turns of all engines, whose pages are checked after each."""
    records: list[StepRecord] = []
    step = Engine.step

    def recorded(engine: Engine, **terms: Any) -> StepRecord:
        records.append(step(engine, **terms))
        engine.kv.check()
        return records[-1]

    monkeypatch.setattr(Engine, "step", recorded)
    return records
