"""Prompts are read together and beside sequences that decode, and each gives the tokens that it gives alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from support.engine.processors import GREEDY, one, wander
from support.engine.requests import make_request, run
from support.products import rest_slow
from weft import LLM, EngineConfig, Guide, RequestError, SamplingParams, Speculation
from weft.core.request import NO_RULES, Gather, TokenRules
from weft.engine import build
from weft.engine.runner.graphs import StepGraphs
from weft.engine.runner.prompts import PromptPart
from weft.engine.runner.step import Plan
from weft.engine.sequence import Sequence as Answer

PROMPTS = [
    "Text: Ada is 31.\nJSON: ",
    "x",
    "Text: Bo Li lives in Oslo, and has for years, with a cat.\nJSON: ",
    "Write: ",
    "Text: Cy.\nJSON: ",
    "The quick brown fox jumps over the lazy dog. " * 3,
]
GUIDES = [Guide.json(), None, Guide.regex("[a-z ]{12}"), None, Guide.json(), Guide.regex("[a-z]{3,9}")]
SAMPLINGS = [
    SamplingParams(max_tokens=10),
    SamplingParams(max_tokens=10, temperature=0.9, seed=3, top_p=0.9),
    SamplingParams(max_tokens=10, repetition_penalty=1.3),
    SamplingParams(max_tokens=10, logprobs=2),
    SamplingParams(max_tokens=10, min_tokens=6, frequency_penalty=0.4),
    SamplingParams(max_tokens=10),
]
RULES = [
    NO_RULES,
    NO_RULES,
    TokenRules(bad_words=((300,), (41, 52))),
    NO_RULES,
    TokenRules(ends=(0, 1)),
    NO_RULES,
]
SPECULATIONS = {
    "none": Speculation.none(),
    "eagle3": Speculation.eagle3(num_draft_tokens=3),
    "mtp": Speculation.mtp(num_draft_tokens=2),
    "draft_model": Speculation.draft_model(num_draft_tokens=2),
    "forced+ngram": Speculation.forced(Speculation.ngram(num_draft_tokens=3)),
}


def asked(llm: LLM) -> list[Answer]:
    """One request for each prompt, with its guide compiled."""
    compiled = [llm.compile(guide).result() if guide is not None else None for guide in GUIDES]
    each = zip(PROMPTS, SAMPLINGS, RULES, compiled, strict=True)
    return [make_request(llm, p, sampling, rules=rules, compiled=c) for p, sampling, rules, c in each]


def answers(llm: LLM, together: bool = True) -> list[Any]:
    requests = asked(llm)
    for some in [requests] if together else [[request] for request in requests]:
        run(llm, some)
    assert [request.output.error for request in requests] == [None] * len(requests)
    return [(request.output.token_ids, request.output.logprobs) for request in requests]


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, list[int]]]]:
    """The number of sequences that each iteration samples, and the tokens that it reads of each prompt."""
    counts: list[tuple[int, list[int]]] = []
    send = StepGraphs.send

    def watching(self: StepGraphs, plan: Plan, slots: list[int], context: Sequence[PromptPart] = ()) -> None:
        if slots or context:
            counts.append((len(slots), [part.count for part in context]))
        send(self, plan, slots, context)

    with monkeypatch.context() as patch:
        patch.setattr(StepGraphs, "send", watching)
        yield counts


@rest_slow
@pytest.mark.parametrize("speculation", sorted(SPECULATIONS))
@pytest.mark.parametrize("engine", [{}, {"prefill_chunk": 20, "max_num_tokens": 48}, {"overlap": True}])
def test_prompts_read_together_answer_as_alone(speculation: str, engine: dict[str, Any]) -> None:
    config = EngineConfig(max_batch=6, max_seq_len=160, reuse=False, **engine)
    with LLM(device="cpu", speculation=SPECULATIONS[speculation], engine=config) as llm:
        assert answers(llm) == answers(llm, together=False)


def test_short_prompts_take_one_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        LLM(device="cpu", engine=EngineConfig(max_batch=6, max_seq_len=160)) as llm,
        watched(monkeypatch) as counts,
    ):
        answers(llm)
        lengths = [len(llm.tokenizer.encode(prompt)) for prompt in PROMPTS]
    assert counts[0] == (len(lengths), [length - 1 for length in lengths if length > 1])
    assert all(not context for _, context in counts[1:])


def test_an_iteration_has_so_many_parts_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(device="cpu", engine=EngineConfig(max_batch=6, max_seq_len=160)) as llm:
        expected = answers(llm)
    monkeypatch.setattr(build, "MAX_PARTS", 4)
    with (
        LLM(device="cpu", engine=EngineConfig(max_batch=6, max_seq_len=160)) as llm,
        watched(monkeypatch) as counts,
    ):
        assert answers(llm) == expected
    assert [(rows, len(context)) for rows, context in counts[:2]] == [(0, 4), (6, 2)]


def test_prompts_are_read_beside_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the tokens that both requests give alone. A part of the prompt is read in each iteration."""
    config = EngineConfig(max_batch=2, max_seq_len=160, reuse=False, prefill_chunk=16, max_stall=1.0)
    sampling = SamplingParams(max_tokens=24, min_tokens=24)
    with LLM(device="cpu", engine=config) as llm:
        first, second = (make_request(llm, text, sampling) for text in ("x", PROMPTS[5]))
        engine = llm.engine
        with watched(monkeypatch) as counts:
            engine.submit(first)
            for _ in range(4):
                engine.step()
            run(llm, [second])
        beside = [context for rows, context in counts if rows == 1 and context]
        assert len(beside) >= 2
        while engine.has_work:
            engine.step()
        again = [make_request(llm, text, sampling) for text in ("x", PROMPTS[5])]
        for request in again:
            run(llm, [request])
    assert [r.output.token_ids for r in (first, second)] == [r.output.token_ids for r in again]


def test_outputs_and_processors_do_not_depend_on_other_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts whose positions' outputs are wanted, and those with a logits processor, are read with the others."""
    names = ("hidden_states.1", "TopKLogits")
    config = EngineConfig(
        max_batch=4,
        max_seq_len=160,
        reuse=False,
        gather_generation_logits=True,
        additional_outputs=tuple((name, True) for name in names),
    )
    wanted = [
        {"gather": Gather(True, True, names, names)},
        {"gather": Gather(generation_logits=True, names=names)},
        {"processor": one(wander)},
        {"gather": Gather(generation_logits=True)},
    ]

    def given_out(requests: list[Any]) -> list[Any]:
        assert [request.output.error for request in requests] == [None] * len(requests)
        return [request.output for request in requests]

    with LLM(device="cpu", engine=config) as llm:
        prompts = [PROMPTS[i] for i in (0, 2, 4, 3)]
        requests = [make_request(llm, p, GREEDY, **w) for p, w in zip(prompts, wanted, strict=True)]
        with watched(monkeypatch) as counts:
            run(llm, requests)
        # The processor's iteration reads no prompts, so that it needs no graph of its own.
        assert [(rows, len(context)) for rows, context in counts[:2]] == [(0, 4), (4, 0)]
        for prompt, fields, output in zip(prompts, wanted, given_out(requests), strict=True):
            again = make_request(llm, prompt, GREEDY, **fields)
            run(llm, [again])
            (alone,) = given_out([again])
            assert output.token_ids == alone.token_ids
            assert output.additional.keys() == alone.additional.keys()
            for name in alone.additional:
                assert torch.equal(output.additional[name], alone.additional[name]), name
            for name in ("context_logits", "generation_logits"):
                one_way, other = getattr(output, name), getattr(alone, name)
                assert (one_way is None and other is None) or torch.equal(one_way, other), name


@pytest.mark.parametrize("overlap", [False, True])
def test_a_failure_while_outputs_are_collected_is_its_prompts(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("hidden_states.1",)
    config = EngineConfig(
        max_batch=6, max_seq_len=160, reuse=False, overlap=overlap, additional_outputs=((names[0], True),)
    )
    with LLM(device="cpu", engine=config) as llm:
        expected = answers(llm)
        model, forward = llm.engine.parts.model, llm.engine.parts.model.forward

        def failing(tokens: torch.Tensor, *args: Any) -> Any:
            if tokens.shape[0] == 1 and tokens.dim() == 2:  # a prompt alone, not a captured iteration
                raise RuntimeError("planted in a prompt")
            return forward(tokens, *args)

        monkeypatch.setattr(model, "forward", failing)
        requests = [
            *asked(llm)[:5],
            make_request(llm, PROMPTS[5], GREEDY, gather=Gather(context_names=names)),
        ]
        run(llm, requests)
        failed = requests.pop()
        assert isinstance(failed.output.error, RequestError)
        assert "planted in a prompt" in str(failed.output.error)
        assert [request.output.error for request in requests] == [None] * 5
        assert [request.output.token_ids for request in requests] == [tokens for tokens, _ in expected[:5]]
        monkeypatch.setattr(model, "forward", forward)
        assert answers(llm) == expected


def test_a_slot_that_becomes_free_is_given_to_the_next() -> None:
    """Also if the batch that remains is launched again and again, and the slot becomes free a step after the end."""
    config = EngineConfig(max_batch=2, max_seq_len=160, overlap=True)
    with LLM(device="cpu", engine=config) as llm:
        stop = llm.generate(PROMPTS[0], sampling=SamplingParams(max_tokens=6)).token_ids[-1]
        ends = make_request(llm, PROMPTS[0], SamplingParams(max_tokens=100, stop_token_ids=[stop]))
        long, waiting = (make_request(llm, "x", SamplingParams(max_tokens=n, min_tokens=n)) for n in (100, 4))
        for request in (ends, long, waiting):
            llm.engine.submit(request)
        while not waiting.is_finished:
            llm.engine.step()
        assert ends.output.finish_reason == "stop"
        assert not long.is_finished and len(long.output.token_ids) < 30
        while llm.engine.has_work:
            llm.engine.step()


def test_a_single_token_is_not_left_to_read() -> None:
    """A prompt of one token more than a step reads ends in that step, since its last token is decoded."""
    config = EngineConfig(max_batch=2, max_seq_len=160, reuse=False, max_num_tokens=34, prefill_chunk=32)
    with LLM(device="cpu", engine=config) as llm:
        request = make_request(llm, "x", SamplingParams(max_tokens=4, min_tokens=4))
        request.prompt[:] = range(20, 20 + 35)
        llm.engine.submit(request)
        llm.engine.step()
        assert request.num_unread == 0 and len(request.output.token_ids) == 1
        run(llm, [])
