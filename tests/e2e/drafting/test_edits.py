"""Programs that take a sampled token back and put others in its place: the same text as one request a token would give,
however it is drafted, launched and scheduled."""

from __future__ import annotations

from itertools import pairwise

import pytest

from support.engine.drafters import SPECULATIONS
from support.products import rest_slow
from support.wasm.guides import PLACES, PROMPT, replacing, taken_back, tokens_of, zeros
from weft import LLM, EngineConfig, Guide, Output, RequestError, SamplingParams, Speculation
from weft.engine.sequence import Sequence

SAMPLING = [
    SamplingParams(max_tokens=20, temperature=0.0),
    *(SamplingParams(max_tokens=20, temperature=1.5, seed=seed) for seed in range(5)),
]


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """One request for each sampled token, over the text as it was written anew."""
    answers = []
    with LLM(device="cpu", engine=EngineConfig(max_batch=1, graphs="none")) as llm:
        prompt: list[int] = llm.tokenizer.encode(PROMPT)
        size = {
            token: len(llm.tokenizer.decode([token])) for token in range(llm.engine.grammar.state.vocab_size)
        }
        for sampling in SAMPLING:
            text: list[int] = []
            while (left := PLACES - sum(size[token] for token in text)) > 0:
                one = SamplingParams(max_tokens=1, temperature=sampling.temperature, seed=sampling.seed)
                guide = Guide.regex(f"[0-9]{{1,{left}}}")
                (token,) = llm.generate(prompt + text, guide=guide, sampling=one).token_ids
                text += zeros() if token in taken_back() else [token]
            answers.append(text)
    assert sum(zeros() == [a, b] for text in answers for a, b in pairwise(text)) >= 6
    return answers


@pytest.fixture(params=sorted(SPECULATIONS))
def speculation(request: pytest.FixtureRequest) -> Speculation:
    return SPECULATIONS[request.param]


@rest_slow
@pytest.mark.parametrize("way", ["one", "split", "none", "overlap", "few pages"])
def test_the_text_is_written_anew(expected: list[list[int]], speculation: Speculation, way: str) -> None:
    settings = {
        "overlap": EngineConfig(max_batch=4, overlap=True),
        "few pages": EngineConfig(max_batch=4, max_seq_len=96, num_pages=24, policy="max_utilization"),
    }
    config = settings[way] if way in settings else EngineConfig(max_batch=4, graphs=way)  # type: ignore[arg-type]
    with LLM(device="cpu", speculation=speculation, engine=config) as llm:
        prompts = [PROMPT] * (len(SAMPLING) + 1)
        guides = [*[replacing(zeros())] * len(SAMPLING), Guide.regex("[a-z]{9}")]
        outputs: list[Output] = llm.generate(prompts, guide=guides, sampling=[*SAMPLING, SAMPLING[1]])
        alone = llm.generate(PROMPT, guide=guides[-1], sampling=SAMPLING[1])
    ends = [output.token_ids[-1:] for output in outputs]
    assert [output.token_ids[:-1] for output in outputs[:-1]] == expected
    assert ends[:-1] == [ends[0]] * len(SAMPLING)
    assert all(output.finish_reason == "stop" and output.stats.guided_valid for output in outputs)
    assert outputs[-1].token_ids == alone.token_ids
    for (
        output
    ) in outputs:  # a draft that was taken back, or stood after one, was neither proposed nor accepted
        stats = output.stats
        assert stats.accepted_drafts == sum(output.drafted) <= stats.proposed_drafts
        assert stats.drafted_tokens <= stats.accepted_drafts + stats.drafted_iterations


def test_pages_run_out_where_the_text_is_written_anew(
    expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that waits to be read again gives its pages back; it is not one to preempt."""
    config = EngineConfig(max_batch=4, overlap=True, policy="max_utilization")
    with LLM(device="cpu", engine=config) as llm:
        engine, grow = llm.engine, llm.engine.scheduler.capacity.grow
        num_short = 0

        def grow_unless_some_wait(running: Sequence) -> bool | None:
            nonlocal num_short
            assert engine.output.in_flight or not any(r.must_reread for r in engine.scheduler.running)
            num_short += bool(engine.output.in_flight)
            return None if engine.output.in_flight else grow(running)

        monkeypatch.setattr(llm.engine.scheduler.capacity, "grow", grow_unless_some_wait)
        outputs = llm.generate(
            [PROMPT] * len(SAMPLING), guide=[replacing(zeros())] * len(SAMPLING), sampling=SAMPLING
        )
    assert [output.token_ids[:-1] for output in outputs] == expected
    assert num_short


def test_a_program_that_only_takes_back_comes_to_an_end() -> None:
    """What is forbidden by nothing is sampled again; the others go on."""
    with LLM(device="cpu") as llm:
        guides = [replacing([]), Guide.regex("[a-z]{9}")]
        bias = dict.fromkeys(taken_back(), 1e4)
        sampling = SamplingParams(max_tokens=20, logit_bias=bias)
        outputs = llm.generate([PROMPT] * 2, guide=guides, sampling=sampling)
    assert isinstance(outputs[0].error, RequestError)
    assert "dropped" in str(outputs[0].error)
    assert outputs[0].token_ids == []
    assert outputs[1].finish_reason == "stop"


def test_what_is_put_ends_like_what_is_sampled() -> None:
    """Stop words, the limit and log-probabilities."""
    biased = SamplingParams(max_tokens=20, logit_bias={taken_back()[0]: 1e4})
    with LLM(device="cpu") as llm:
        whole = llm.generate(PROMPT, guide=replacing(zeros()), sampling=biased)
        assert whole.text == "0" * PLACES
        cut = llm.generate(
            PROMPT,
            guide=replacing(zeros()),
            sampling=SamplingParams(max_tokens=3, logit_bias=biased.logit_bias),
        )
        assert (cut.token_ids, cut.finish_reason) == (tokens_of("0") * 3, "length")
        stopped = llm.generate(
            PROMPT,
            guide=replacing(zeros()),
            sampling=SamplingParams(max_tokens=20, logit_bias=biased.logit_bias, stop=["000"], logprobs=1),
        )
        assert (stopped.token_ids, stopped.finish_reason) == (tokens_of("0") * 3, "stop")
        assert [entry.logprob for entry in stopped.logprobs or []] == [0.0] * 3
