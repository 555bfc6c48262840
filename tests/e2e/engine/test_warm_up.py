"""Warming up: on the engine's thread, prompts as well as iterations, and nothing of it is left."""

from __future__ import annotations

import threading

import pytest
import torch

from support.products import rest_slow
from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation
from weft.client import BuiltEngine
from weft.config import Graphs
from weft.engine.runner.graphs import StepGraphs
from weft.engine.runner.step import Plan
from weft.errors import GraphError, WeftError
from weft.executor import Executor, ExecutorConfig

SPECULATIONS = {
    "none": Speculation.none(),
    "eagle3": Speculation.eagle3(num_draft_tokens=2),
    "mtp": Speculation.mtp(num_draft_tokens=2),
    "forced+draft_model": Speculation.forced(Speculation.draft_model(num_draft_tokens=2)),
}
PROMPTS = ["Write JSON.", "x", "The quick brown fox jumps over the lazy dog. " * 4]


def answers(llm: LLM) -> list[list[int]]:
    guides = [Guide.json(), None, Guide.regex("[a-z ]{12}")]
    return [o.token_ids for o in llm.generate(PROMPTS, guide=guides, sampling=SamplingParams(max_tokens=12))]


def contents(llm: LLM) -> list[torch.Tensor]:
    """All that requests could meet again: keys and values beyond page 0, which is nobody's, and what slots hold."""
    parts = llm.engine.parts
    caches = [parts.kv, *([parts.drafter.kv] if parts.drafter is not None and parts.drafter.kv else [])]
    pages = [group[:, 1:] for cache in caches for group in cache.groups]
    state = parts.state
    slots = [state.length, state.last_token[:-1], state.drafts[:, :-1], state.verified[:-1], state.page_table]
    return [tensor.clone() for tensor in (*pages, *slots)]


@rest_slow
@pytest.mark.parametrize("graphs", ["one", "split", "none"])
@pytest.mark.parametrize("name", sorted(SPECULATIONS))
def test_nothing_is_left_of_a_warm_up(name: str, graphs: Graphs) -> None:
    engine = EngineConfig(max_batch=2, max_seq_len=96, prefill_chunk=32, graphs=graphs)
    with LLM(device="cpu", speculation=SPECULATIONS[name], engine=engine) as llm:
        before, usage = contents(llm), llm.engine.kv.usage()
        llm.warm_up()
        for there, was in zip(contents(llm), before, strict=True):
            assert torch.equal(there, was)
        assert llm.engine.kv.usage() == usage
        assert llm.num_iterations == 0 and llm.num_graph_replays == 0
        assert llm.engine.grammar.state.num_pending == 0
        assert llm.engine._grammar_s == llm.engine.grammar.state.seconds
        warm = answers(llm)
    with LLM(device="cpu", speculation=SPECULATIONS[name], engine=engine) as llm:
        assert answers(llm) == warm


@pytest.fixture
def warms_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA."""
    monkeypatch.setattr(BuiltEngine, "warms_up", True)


@pytest.mark.usefixtures("warms_up")
def test_the_engines_thread_warms_up(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[tuple[str, Plan]] = []
    prepare = StepGraphs.prepare

    def watched(self: StepGraphs, plan: Plan) -> None:
        prepared.append((threading.current_thread().name, plan))
        prepare(self, plan)

    monkeypatch.setattr(StepGraphs, "prepare", watched)
    with LLM(device="cpu", engine=EngineConfig(max_batch=2, max_seq_len=96, prefill_chunk=32)) as llm:
        assert {name for name, _ in prepared} == {"weft-engine"} and len(prepared) == 6
        assert [plan.num_context for _, plan in prepared] == [0, 0, 0, 0, 32, 32]
        prepared.clear()
        answers(llm)
        assert prepared == []
    with Executor(device="cpu", config=ExecutorConfig(max_batch_size=1)):
        assert prepared


@pytest.mark.usefixtures("warms_up")
def test_what_a_warm_up_raises_is_the_constructors(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: StepGraphs, plan: Plan) -> None:
        raise GraphError("no memory for a graph")

    monkeypatch.setattr(StepGraphs, "prepare", fail)
    before = threading.active_count()
    with pytest.raises(WeftError, match="no memory for a graph"):
        LLM(device="cpu")
    assert threading.active_count() <= before
