"""Beams through the Executor: one response for all sequences, whole at every step, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.engine.beams import Beams
from support.engine.requests import engine_request
from support.grammar.slow_matcher import SlowMatcher
from weft import Guide
from weft.config import package_model_path
from weft.core import SamplingParams
from weft.core.beam_params import BeamParams
from weft.executor import (
    Executor,
    ExecutorConfig,
    FinishReason,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    OutputConfig,
    Request,
    Response,
    SamplingConfig,
)

PROMPT = [0, 292, 28, 380, 323, 358, 327, 42, 15, 20, 25, 26, 20, 16, 706]
WHOLE = OutputConfig(exclude_input_from_output=True, return_log_probs=True)


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    config = ExecutorConfig(
        max_beam_width=4, max_batch_size=8, max_seq_len=128, guided_decoding_config=GuidedDecodingConfig()
    )
    with Executor(None, config, device="cpu") as made:
        yield made


@pytest.fixture(scope="module")
def expected() -> Request:
    """The same search, without an executor."""
    params = BeamParams(4, 3, length_penalty=1.0, early_stopping=0)
    request = engine_request(PROMPT, SamplingParams(max_tokens=10), 0, beam=params)
    Beams(package_model_path()).run([request])
    return request


OF_THE_CACHE = 0.02
"""How far a log probability may be from that of the search without an executor, whose cache is float32."""


def search(**more: object) -> Request:
    fields = {"max_tokens": 10, "output_config": WHOLE, **more}
    sampling = SamplingConfig(4, num_return_sequences=3, length_penalty=1.0, early_stopping=0)
    return Request(PROMPT, **{"sampling_config": sampling, **fields})  # type: ignore[arg-type]


def all_of(executor: Executor, request: Request) -> list[Response]:
    number = executor.enqueue_request(request)
    responses: list[Response] = []
    while not responses or not (responses[-1].has_error() or responses[-1].result.is_final):
        responses += executor.await_responses(number, 20)
    return responses


def test_one_response_holds_every_sequence(executor: Executor, expected: Request) -> None:
    (response,) = all_of(executor, search())
    result = response.result
    assert result.is_final and result.is_sequence_final and result.sequence_index == 0
    assert result.output_token_ids == [h.token_ids for h in expected.output.hypotheses]
    assert result.cum_log_probs == pytest.approx(
        [h.cum_log_prob for h in expected.output.hypotheses], abs=OF_THE_CACHE
    )
    assert result.log_probs == [
        pytest.approx(h.log_probs, abs=OF_THE_CACHE) for h in expected.output.hypotheses
    ]
    reasons = {"stop": FinishReason.END_ID, "length": FinishReason.LENGTH}
    assert result.finish_reasons == [reasons[h.finish_reason or ""] for h in expected.output.hypotheses]
    (response,) = all_of(executor, search(output_config=OutputConfig()))
    assert response.result.output_token_ids == [PROMPT + h.token_ids for h in expected.output.hypotheses]
    assert response.result.log_probs is None and response.result.cum_log_probs is None


def test_a_stream_gives_beams_as_they_are(executor: Executor, expected: Request) -> None:
    responses = all_of(executor, search(streaming=True))
    for i, response in enumerate(responses[:-1]):
        result = response.result
        assert not result.is_final and set(result.finish_reasons) == {FinishReason.NOT_FINISHED}
        assert len(result.output_token_ids) == len(result.finish_reasons) <= 3
        assert max(len(tokens) for tokens in result.output_token_ids) == i + 1
        assert not any(tokens[:1] == PROMPT[:1] for tokens in result.output_token_ids)
    assert len(responses) == 10
    assert responses[-1].result.output_token_ids == [h.token_ids for h in expected.output.hypotheses]


def test_requests_of_other_widths_and_none_are_served_beside_it(
    executor: Executor, expected: Request
) -> None:
    plain = Request(PROMPT, 6, output_config=WHOLE)
    guided = search(
        sampling_config=SamplingConfig(2),
        guided_decoding_params=GuidedDecodingParams(GuidedDecodingParams.GuideType.REGEX, "(yes|no|maybe)"),
    )
    numbers = executor.enqueue_requests([plain, search(), guided, plain, search()])
    assert len(set(numbers)) == 5
    results = [responses[0].result for responses in executor.await_responses(numbers, 30)]
    assert results[1].output_token_ids == results[4].output_token_ids
    assert results[1].output_token_ids == [h.token_ids for h in expected.output.hypotheses]
    assert results[0].output_token_ids == results[3].output_token_ids
    assert len(results[2].output_token_ids) == 2
    assert results[2].finish_reasons == [FinishReason.END_ID] * 2


def test_stop_words_end_single_beams(executor: Executor, expected: Request) -> None:
    stop = expected.output.hypotheses[0].token_ids[1:3]
    (response,) = all_of(executor, search(stop_words=[stop], sampling_config=SamplingConfig(4)))
    result = response.result
    assert FinishReason.STOP_WORDS in result.finish_reasons
    for tokens, reason in zip(result.output_token_ids, result.finish_reasons, strict=True):
        found = [i for i in range(len(tokens)) if tokens[i : i + 2] == stop]
        assert found == ([len(tokens) - 2] if reason is FinishReason.STOP_WORDS else [])


def test_a_cancelled_search_gives_its_beams_so_far(executor: Executor) -> None:
    number = executor.enqueue_request(search(max_tokens=100, streaming=True, end_id=-1))
    responses = executor.await_responses(number, 20)
    executor.cancel_request(number)
    while not responses[-1].result.is_final:
        responses += executor.await_responses(number, 20)
    last = responses[-1].result
    assert 1 <= len(last.output_token_ids) <= 3 and all(last.output_token_ids)
    assert set(last.finish_reasons) == {FinishReason.CANCELLED}


@pytest.mark.parametrize(
    ("sampling", "output", "says"),
    [
        (SamplingConfig(5), WHOLE, "max_beam_width is 4"),
    ],
)
def test_what_it_cannot_do_is_an_error_response(
    executor: Executor, sampling: SamplingConfig, output: OutputConfig, says: str
) -> None:
    (response,) = all_of(executor, search(sampling_config=sampling, output_config=output))
    assert response.has_error() and says in response.error_msg


@pytest.mark.parametrize("slow", ["masks", pytest.param("taking tokens", marks=pytest.mark.slow)])
def test_a_slow_guide_of_beams_ends_its_request(slow: str) -> None:
    config = ExecutorConfig(
        max_beam_width=4,
        max_batch_size=8,
        max_seq_len=128,
        guided_decoding_config=GuidedDecodingConfig(mask_time_limit_s=0.25),
    )
    with Executor(None, config, device="cpu") as executor:
        executor.register_guide("slow", Guide.matcher(lambda: SlowMatcher(slow))).result(60)
        slow_request = search(guided_decoding_params=GuidedDecodingParams.handle("slow"))
        (*_, ended) = all_of(executor, slow_request)
        (*_, other) = all_of(executor, search())
    assert f"{slow} " in ended.error_msg and "over the limit of 250 ms" in ended.error_msg
    assert not other.has_error()
