"""Strangers' guides among other requests: each ends its own request, and nobody else's tokens change."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from support.executor import request, until_final
from support.grammar.hostile import CASES, properties
from support.grammar.slow_matcher import SlowMatcher
from support.products import rest_slow
from weft import LLM, EngineConfig, Guide, GuideStateError, SamplingParams, Speculation
from weft.executor import (
    Executor,
    ExecutorConfig,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    GuideType,
    Request,
)

KINDS = {
    "json_schema": GuideType.JSON_SCHEMA,
    "regex": GuideType.REGEX,
    "ebnf": GuideType.EBNF_GRAMMAR,
    "structural_tag": GuideType.STRUCTURAL_TAG,
}
GOOD = [
    (GuideType.REGEX, "[0-9]{9}"),
    (GuideType.JSON_SCHEMA, json.dumps({"type": "object", "properties": {"age": {"type": "integer"}}})),
    (None, None),
]


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    config = ExecutorConfig(
        guided_decoding_config=GuidedDecodingConfig(untrusted=True), max_batch_size=4, max_seq_len=256
    )
    with Executor(None, config, device="cpu") as made:
        yield made


def good(kind: GuideType | None, guide: str | None) -> Request:
    if kind is None:
        return request(40)
    return request(40, end_id=None, guided_decoding_params=GuidedDecodingParams(kind, guide))


def hostile(kind: str, argument: Any) -> Request | None:
    text = argument if isinstance(argument, str) else json.dumps(argument)
    if not text:
        return None  # `GuidedDecodingParams` refuses it itself
    return request(
        8, end_id=None, guided_decoding_params=GuidedDecodingParams(KINDS[kind], text, strict=False)
    )  # what is left out is not the question here


@pytest.mark.slow
def test_others_tokens_are_unchanged(executor: Executor) -> None:
    def tokens(number: int) -> list[int]:
        (response,) = until_final(executor, number)
        (told,) = response.result.output_token_ids
        return told

    alone = [tokens(executor.enqueue_request(good(*each))) for each in GOOD]
    cases = [*CASES, ("json_schema", "slow, but within bounds", properties(900), None)]
    expected, fine, bad = [], [], []
    for i, (kind, name, argument, text) in enumerate(cases):
        sent = hostile(kind, argument)
        if sent is not None:
            expected.append((name, text))
            bad.append(executor.enqueue_request(sent))
        if i % 6 == 0:
            which = i // 6 % len(GOOD)
            fine.append((which, executor.enqueue_request(good(*GOOD[which]))))
    for which, number in fine:
        assert tokens(number) == alone[which]
    ended_with_error = 0
    for (name, text), number in zip(expected, bad, strict=True):
        response = until_final(executor, number)[-1]
        ended_with_error += response.has_error()
        if text is None:
            assert not response.has_error(), name
    assert len(bad) >= 60
    assert ended_with_error >= 35  # LLGuidance takes some that XGrammar is not asked to
    assert alone == [tokens(executor.enqueue_request(good(*each))) for each in GOOD]


@rest_slow
@pytest.mark.parametrize("slow", ["masks", "taking tokens", "taking tokens back"])
@pytest.mark.parametrize("graphs", ["one", "split"])
def test_a_guide_that_takes_too_long_ends_its_request(graphs: Any, slow: str) -> None:
    # The head can't draft these letters, so that tokens are taken back.
    prompt = 'Text: Արամ is 31 years old.\nSchema: {"name": string}\nJSON: '
    sampling = SamplingParams(max_tokens=12)
    engine = EngineConfig(max_batch=2, max_seq_len=128, graphs=graphs, mask_time_limit_s=0.25)
    with LLM(device="cpu", engine=engine, speculation=Speculation.eagle3(num_draft_tokens=3)) as llm:
        alone = llm.generate(prompt, guide=Guide.regex("[a-z]+"), sampling=sampling)
        fine, late = llm.generate(
            [prompt] * 2,
            guide=[Guide.regex("[a-z]+"), Guide.matcher(lambda: SlowMatcher(slow))],
            sampling=sampling,
        )
    assert isinstance(late.error, GuideStateError)
    assert re.search(rf"{slow} \d+ ms.* over the limit of 250 ms; raise mask_time_limit_s", str(late.error))
    assert len(late.token_ids) < 12
    assert (fine.error, fine.token_ids) == (None, alone.token_ids)
