"""What fails in one iteration, or for one request, leaves the next iterations and the other requests whole."""

from __future__ import annotations

from typing import Any

import pytest

from weft import LLM, EngineConfig, Guide, InputError, SamplingParams, Speculation
from weft.config import Graphs
from weft.engine.runner import graphs as graphs_module
from weft.engine.runner.graphs import StepGraphs
from weft.engine.runner.step import Plan, decode_step
from weft_bench.engine.simulated import simulate_acceptance

PROMPT = 'Text: Ada Berg is 31 years old.\nSchema: {"name": string}\nJSON: '


@pytest.mark.parametrize("graphs", ["one", "split"])
def test_a_capture_that_fails_is_made_again(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has sent rows that only pad; the next iteration must not run on them."""
    sampling = SamplingParams(max_tokens=8)
    with LLM(device="cpu", engine=EngineConfig(max_batch=2, graphs=graphs)) as llm:
        expected = llm.generate(PROMPT, sampling=sampling).token_ids
        calls = 0

        def failing(iteration: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise RuntimeError("planted in the capture")
            decode_step(iteration)

        monkeypatch.setattr(graphs_module, "decode_step", failing)
        guided = llm.generate([PROMPT], guide=Guide.regex("[a-z ]{30}"), sampling=sampling)[0]
        assert "planted in the capture" in str(guided.error)
        assert llm.generate(PROMPT, sampling=sampling).token_ids == expected
        again = llm.generate(PROMPT, guide=Guide.regex("[a-z ]{30}"), sampling=sampling)
        assert len(again.token_ids) == 8


def test_what_one_commit_raises_is_that_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.tokenizer.text import RunningText

    sampling = SamplingParams(max_tokens=10)
    with LLM(device="cpu", engine=EngineConfig(max_batch=3)) as llm:
        expected = llm.generate([PROMPT] * 2, sampling=sampling)

        def broken(self: RunningText, token: int) -> str | None:
            raise ValueError("planted in the stop words")

        monkeypatch.setattr(RunningText, "feed", broken)
        outputs = llm.generate(
            [PROMPT] * 3, sampling=[SamplingParams(max_tokens=10, stop="x"), sampling, sampling]
        )
        assert "planted in the stop words" in str(outputs[0].error)
        assert [o.token_ids for o in outputs[1:]] == [o.token_ids for o in expected]


def test_an_end_token_as_a_stop_token_is_an_end() -> None:
    with LLM(device="cpu") as llm:
        end = llm.tokenizer.eos_token_id
        output = llm.generate(
            PROMPT, guide=Guide.choice(["yes", "no"]), sampling=SamplingParams(stop_token_ids=[end])
        )
        assert (output.finish_reason, output.stopped_by, output.stats.guided_valid) == ("stop", None, True)


@pytest.mark.parametrize("graphs", ["one", "split"])
def test_warm_up_captures_what_will_be_used(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[Plan] = []
    prepare = StepGraphs.prepare

    def watched(self: StepGraphs, plan: Plan) -> None:
        prepared.append(plan)
        prepare(self, plan)

    monkeypatch.setattr(StepGraphs, "prepare", watched)
    speculation = Speculation.eagle3(num_draft_tokens={1: 4, 2: 2, 4: 0}, guide_drafts=True)
    engine = EngineConfig(max_batch=4, graphs=graphs)
    with LLM(device="cpu", speculation=speculation, engine=engine) as llm:
        llm.warm_up()
        reading = {(plan.batch, plan.num_drafts) for plan in prepared if plan.num_context}
        decoding = {(plan.batch, plan.num_drafts) for plan in prepared if not plan.num_context}
        assert reading == {(4, 0), (4, 2), (4, 4)}
        assert decoding == {(1, 4), (2, 2), (4, 2), (1, 0), (2, 0), (4, 0)}
        prepared.clear()
        llm.generate(
            [PROMPT] * 5,
            guide=[None, Guide.json(), None, Guide.json(), None],
            sampling=SamplingParams(max_tokens=12),
        )
        assert prepared == []


def test_more_simulated_tokens_than_drafts_allow_are_refused() -> None:
    with (
        LLM(device="cpu", speculation=Speculation.eagle3(num_draft_tokens=3)) as llm,
        pytest.raises(InputError, match="with 3 drafts it can be 1 to 4 tokens"),
    ):
        simulate_acceptance(llm.engine, 5.0)
    with LLM(device="cpu") as llm, pytest.raises(InputError, match="with 0 drafts it can be 1 to 1 tokens"):
        simulate_acceptance(llm.engine, 2.0)


@pytest.mark.parametrize("accepted", [1.0, 1.5, 3.0])
def test_simulated_acceptance_is_what_was_asked(accepted: float) -> None:
    engine = EngineConfig(max_batch=4)
    speculation = Speculation.eagle3(num_draft_tokens=3, guide_drafts=True)
    with LLM(device="cpu", speculation=speculation, engine=engine) as llm:
        simulate_acceptance(llm.engine, accepted)
        outputs = llm.generate(
            [PROMPT] * 8, guide=Guide.regex("[a-z ]{200}"), sampling=SamplingParams(max_tokens=90)
        )
    tokens = sum(output.stats.drafted_tokens for output in outputs)
    iterations = sum(output.stats.drafted_iterations for output in outputs)
    assert tokens / iterations == pytest.approx(accepted, abs=0.12)
