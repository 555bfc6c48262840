"""What an executor's requests mean by sampling: penalties by TensorRT-LLM's rule, n-grams that come once, top-p that
decays. Each equals a reference in plain torch, with each drafter, guided or not.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from support.engine.oracle import assert_same
from support.engine.references import Checkpoint, compile_reference, make_guide
from support.engine.requests import make_request, run
from support.engine.sampling_oracle import decode
from weft import LLM, EngineConfig, SamplingParams, Speculation
from weft.core.request import OWN_PENALTIES, PenaltyRule, Request, TokenRules
from weft.errors import DeadEndError, InputError

RULE = PenaltyRule(counts_prompt=True, after_temperature=True)
LATE = PenaltyRule(counts_prompt=True, prompt_ignore_length=20, after_temperature=True)
PENALTIES = {"repetition_penalty": 1.2, "presence_penalty": 1.5, "frequency_penalty": 0.4}
MIXES: dict[str, tuple[dict[str, Any], PenaltyRule]] = {
    "penalties": (PENALTIES, RULE),
    "warm penalties": ({"temperature": 0.6, "logit_bias": {30: 3.0, 31: -3.0}, **PENALTIES}, RULE),
    "hot penalties, late": ({"temperature": 1.6, "top_k": 30, **PENALTIES}, LATE),
    "top-k of one": ({"temperature": 0.3, "top_k": 1, **PENALTIES}, RULE),
    "n-grams": ({"no_repeat_ngram_size": 2}, OWN_PENALTIES),
    "warm n-grams": ({"temperature": 0.9, "no_repeat_ngram_size": 3}, OWN_PENALTIES),
    "decay": ({"temperature": 1.3, "top_p": 0.98, "top_p_decay": 0.8, "top_p_min": 0.2}, OWN_PENALTIES),
    "decay anew": (
        {"temperature": 1.5, "top_p": 0.98, "top_p_decay": 0.5, "top_p_min": 0.1, "top_p_reset_ids": 280},
        OWN_PENALTIES,
    ),
    "all": (
        {"temperature": 1.2, "top_p": 1.0, "top_p_decay": 0.9, "no_repeat_ngram_size": 2, **PENALTIES},
        LATE,
    ),
}
GUIDED = [None, ("regex", r"[a-z ]{12,20}(\.|!)")]
SPECULATIONS = {
    "none": Speculation.none(),
    "eagle3": Speculation.eagle3(num_draft_tokens=3),
    "mtp": Speculation.mtp(num_draft_tokens=2),
    "ngram": Speculation.ngram(num_draft_tokens=4),
    "given": Speculation.given(num_draft_tokens=5),
}
ROWS = list(itertools.product(MIXES, range(len(GUIDED))))


def params(mix: str, seed: int) -> SamplingParams:
    return SamplingParams(max_tokens=20, seed=2**64 - 1 - seed, **MIXES[mix][0])


@pytest.fixture(scope="module")
def expected(tiny: Checkpoint, prompts: list[str]) -> list[Any]:
    """What the reference gives for each row of ROWS."""
    found = []
    for i, (mix, guide) in enumerate(ROWS):
        entry = GUIDED[guide]
        compiled = compile_reference(tiny.compiler, entry) if entry is not None else None
        prompt = tiny.tokenizer.encode(prompts[i])
        found.append(decode(tiny.model, prompt, compiled, tiny.end_ids, params(mix, i), rule=MIXES[mix][1]))
    return found


@pytest.mark.parametrize(
    ("speculation", "graphs"),
    [*((name, "one") for name in SPECULATIONS), ("eagle3", "split"), ("ngram", "none")],
)
def test_every_rule_equals_the_reference(
    tiny: Checkpoint, prompts: list[str], expected: list[Any], speculation: str, graphs: Any
) -> None:
    """Text that is given is the answer, but for every seventh token: drafts are right, and are not."""
    engine = EngineConfig(max_batch=5, max_seq_len=512, graphs=graphs, kv_cache_dtype="float32")
    with LLM(tiny.path, device="cpu", speculation=SPECULATIONS[speculation], engine=engine) as llm:
        requests = []
        for i, (mix, guide) in enumerate(ROWS):
            entry, reference = GUIDED[guide], expected[i].tokens
            given = [t if n % 7 else t + 1 for n, t in enumerate(reference)] if speculation == "given" else ()
            sampling = params(mix, i)
            asked = Request(
                prompts[i],
                sampling,
                make_guide(entry) if entry is not None else None,
                given=given,
                penalties=MIXES[mix][1],
            )
            requests.append(asked)
        responses, handles = llm.client.responses, llm.client.submit(requests)
        taken = [responses.take([handle.id], 60)[0][1][-1] for handle in handles]
        outputs = [delta.sequence.output for delta in taken if delta.sequence is not None]
    for output, reference, (mix, guide) in zip(outputs, expected, ROWS, strict=True):
        assert_same(output.token_ids, reference, f"{mix}, guide {GUIDED[guide]}")


@pytest.fixture(scope="module")
def llm(tiny: Checkpoint) -> Any:
    engine = EngineConfig(kv_cache_dtype="float32")
    with LLM(
        tiny.path, device="cpu", speculation=Speculation.eagle3(num_draft_tokens=3), engine=engine
    ) as made:
        yield made


def test_n_grams_come_once(prompts: list[str], llm: LLM) -> None:
    for size in (1, 2, 3):
        sampling = SamplingParams(max_tokens=60, min_tokens=60, no_repeat_ngram_size=size)
        output = llm.generate(prompts[0], sampling=sampling)
        text = [*llm.tokenizer.encode(prompts[0]), *output.token_ids]
        start = len(text) - len(output.token_ids)
        grams = [tuple(text[i - size + 1 : i + 1]) for i in range(size - 1, len(text))]
        assert len(output.token_ids) == 60
        assert all(gram not in grams[:i] for i, gram in enumerate(grams) if i + size > start)


def test_n_grams_against_a_guide_end_the_request_alone(prompts: list[str], llm: LLM) -> None:
    twice = make_guide(("regex", "(ab){30}"))
    rows = [(twice, 1), (None, 1), (twice, 0)]
    outputs = llm.generate(
        [prompts[0]] * 3,
        guide=[guide for guide, _ in rows],
        sampling=[SamplingParams(max_tokens=30, no_repeat_ngram_size=size) for _, size in rows],
    )
    assert "the guide and no_repeat_ngram_size forbid every one together" in str(outputs[0].error)
    assert outputs[1].error is None and outputs[2].error is None


def test_n_grams_without_a_guide_may_leave_nothing(prompts: list[str], llm: LLM) -> None:
    """Where a bias forbids all tokens but some."""
    vocab = llm.engine.parts.model.config.vocab_size
    import torch

    bias = torch.full((vocab,), -float("inf"))
    bias[40:45] = 0.0
    sampling = SamplingParams(max_tokens=30, temperature=1.0, seed=1, no_repeat_ngram_size=1)
    request = make_request(llm, [50, 51], sampling, rules=TokenRules(bias=bias))
    run(llm, [request])
    assert isinstance(request.output.error, DeadEndError)
    assert "no_repeat_ngram_size and embedding_bias" in str(request.output.error)
    assert sorted(request.output.token_ids) == [40, 41, 42, 43, 44][: len(request.output.token_ids)] or set(
        request.output.token_ids
    ) <= {40, 41, 42, 43, 44}


def test_seeds_are_of_64_bits(prompts: list[str], llm: LLM) -> None:
    seeds = (-1, 2**64 - 1, 2**63, -(2**63))
    asked = [SamplingParams(max_tokens=12, temperature=9.0, seed=seed) for seed in seeds]
    texts = [output.token_ids for output in llm.generate([prompts[0]] * 4, sampling=asked)]
    assert texts[0] == texts[1] != texts[2] == texts[3]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size is -1; it must be 0 .off."),
        ({"no_repeat_ngram_size": 1.5}, "it must be a whole number"),
        ({"top_p_decay": 0.0}, "top_p_decay is 0.0; it must be above 0"),
        ({"top_p_decay": 1.5}, "top_p_decay"),
        ({"top_p_min": 0}, "top_p_min is 0; it must be above 0"),
        ({"top_p_min": 2}, "top_p_min"),
        ({"top_p_reset_ids": -1}, "top_p_reset_ids is -1; it must be a token id"),
        ({"seed": 2**64}, "64 bits, signed or unsigned"),
    ],
)
def test_bad_values_are_refused_when_given(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        SamplingParams(**given)


def test_what_depends_on_the_model_is_refused_before_it_begins(prompts: list[str], llm: LLM) -> None:
    with pytest.raises(InputError, match="ids of this model are 0 to"):
        llm.generate(prompts[0], sampling=SamplingParams(top_p_decay=0.5, top_p_reset_ids=10**6))
    with pytest.raises(InputError, match="prompt_ignore_length is -1"):
        PenaltyRule(prompt_ignore_length=-1)
