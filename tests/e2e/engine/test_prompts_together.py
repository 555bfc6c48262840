"""Prompts that come together are read together, and each gives the tokens that it gives alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from weft.engine.runner.prefill import Prefill, PromptPart

from support.engine.processors import GREEDY, one, wander
from support.engine.requests import make_request, run
from support.products import rest_slow
from weft import LLM, EngineConfig, Guide, RequestError, SamplingParams, Speculation
from weft.core.request import NO_RULES, Gather, TokenRules
from weft.engine.runner import prefill
from weft.engine.sequence import Sequence

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


def asked(llm: LLM) -> list[Sequence]:
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
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[int]]]:
    """How many tokens of each prompt every forward reads."""
    counts: list[list[int]] = []
    read = Prefill.forward

    def watching(self: Prefill, together: list[PromptPart], *args: Any) -> Any:
        counts.append([part.count for part in together])
        return read(self, together, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Prefill, "forward", watching)
        yield counts


@rest_slow
@pytest.mark.parametrize("speculation", sorted(SPECULATIONS))
@pytest.mark.parametrize("engine", [{}, {"prefill_chunk": 20, "max_num_tokens": 48}, {"overlap": True}])
def test_prompts_read_together_answer_as_alone(speculation: str, engine: dict[str, Any]) -> None:
    config = EngineConfig(max_batch=6, max_seq_len=160, reuse=False, **engine)
    with LLM(device="cpu", speculation=SPECULATIONS[speculation], engine=config) as llm:
        assert answers(llm) == answers(llm, together=False)


def test_short_prompts_take_one_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        LLM(device="cpu", engine=EngineConfig(max_batch=6, max_seq_len=160)) as llm,
        watched(monkeypatch) as counts,
    ):
        answers(llm)
        lengths = [len(llm.tokenizer.encode(prompt)) for prompt in PROMPTS]
    assert counts == [lengths]


def test_a_forward_has_so_many_rows_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(device="cpu", engine=EngineConfig(max_batch=6, max_seq_len=160)) as llm:
        expected = answers(llm)
    monkeypatch.setattr(prefill, "MAX_ROWS", 4)
    with (
        LLM(device="cpu", engine=EngineConfig(max_batch=6, max_seq_len=160)) as llm,
        watched(monkeypatch) as counts,
    ):
        assert answers(llm) == expected
    assert [len(count) for count in counts] == [4, 2]


def test_what_is_wanted_besides_tokens_is_read_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs of prompts' positions and logits processors: a prompt alone, the plain ones together."""
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
        assert [len(count) for count in counts] == [2, 1, 1]
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
@pytest.mark.parametrize("part", ["model", "drafter"])
def test_what_fails_for_one_prompt_fails_that_prompt(
    part: str, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read together with others, which are read again without it."""
    marked = 7
    config = EngineConfig(max_batch=6, max_seq_len=160, reuse=False, overlap=overlap)
    speculation = Speculation.eagle3(num_draft_tokens=2)
    with LLM(device="cpu", speculation=speculation, engine=config) as llm:
        expected = answers(llm)
        parts = llm.engine.parts
        assert parts.drafter is not None
        owner, name = (parts.model, "forward") if part == "model" else (parts.drafter, "prefill")
        original = getattr(owner, name)

        def failing(given: Any, *args: Any) -> Any:
            tokens = given if part == "model" else given.tokens_N
            if tokens.dim() == 1 and bool((tokens == marked).any()):
                raise RuntimeError("planted in a prompt")
            return original(given, *args)

        monkeypatch.setattr(owner, name, failing)
        requests = asked(llm)
        assert all(marked not in request.prompt for request in requests)
        requests[2].prompt.append(marked)
        run(llm, requests)
        failed = requests.pop(2)
        assert isinstance(failed.output.error, RequestError)
        assert "planted in a prompt" in str(failed.output.error)
        assert [request.output.error for request in requests] == [None] * 5
        assert [request.output.token_ids for request in requests] == [
            e[0] for e in expected[:2] + expected[3:]
        ]
        monkeypatch.setattr(owner, name, original)
        assert answers(llm) == expected
