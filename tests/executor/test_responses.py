"""What responses hold: deltas, prompts, sequences, reasons, in their order."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from support.executor import PROMPT, answer, request, until_final
from weft import LLM, EngineConfig, InputError, RequestError, SamplingParams
from weft.executor import (
    Executor,
    FinishReason,
    OutputConfig,
    SamplingConfig,
)

EXCLUDED = OutputConfig(exclude_input_from_output=True)


@pytest.mark.parametrize("num_sequences", [1, 3])
@pytest.mark.parametrize("streaming", [False, True])
def test_responses_are_counted(executor: Executor, streaming: bool, num_sequences: int) -> None:
    """n * (max_tokens if streaming else 1), each sequence with one final response, the request with one."""
    one = request(5, streaming=streaming, sampling_config=SamplingConfig(num_return_sequences=num_sequences))
    responses = until_final(executor, executor.enqueue_request(one))
    assert len(responses) == num_sequences * (5 if streaming else 1)
    results = [response.result for response in responses]
    assert [result.is_final for result in results] == [False] * (len(results) - 1) + [True]
    assert {result.sequence_index for result in results} == set(range(num_sequences))
    ends = [result.sequence_index for result in results if result.is_sequence_final]
    assert sorted(ends) == list(range(num_sequences))
    for result in results:
        reason = FinishReason.LENGTH if result.is_sequence_final else FinishReason.NOT_FINISHED
        assert result.finish_reasons == [reason]


def test_what_a_response_holds_of_the_text(executor: Executor) -> None:
    whole = answer(executor, request(6))
    assert len(whole) == 6
    (plain,) = until_final(executor, executor.enqueue_request(request(6)))
    assert plain.result.output_token_ids == [[*PROMPT, *whole]]
    (excluded,) = until_final(executor, executor.enqueue_request(request(6, output_config=EXCLUDED)))
    assert excluded.result.output_token_ids == [whole]
    deltas = until_final(executor, executor.enqueue_request(request(6, streaming=True)))
    assert [r.result.output_token_ids for r in deltas] == [[[token]] for token in whole]
    assert [r.result.decoding_iter for r in deltas] == list(range(6))
    growing = until_final(
        executor, executor.enqueue_request(request(6, streaming=True, return_all_generated_tokens=True))
    )
    assert [r.result.output_token_ids for r in growing] == [[whole[: i + 1]] for i in range(6)]


def test_tokens_are_those_of_generate(executor: Executor) -> None:
    """Also under temperature: the seed decides, and sequence i has seed + i. At 1 weft-tiny is too sure to vary."""
    config = SamplingConfig(top_p=1.0, temperature=4.0, seed=7, num_return_sequences=3)
    one = request(12, sampling_config=config, output_config=EXCLUDED)
    responses = until_final(executor, executor.enqueue_request(one))
    told = {r.result.sequence_index: r.result.output_token_ids[0] for r in responses}
    with LLM(device="cpu", engine=EngineConfig(max_batch=1, max_seq_len=512)) as llm:
        for index in range(3):
            alone = llm.generate(PROMPT, sampling=SamplingParams(12, temperature=4.0, seed=7 + index))
            length = len(alone.token_ids) - (alone.finish_reason == "stop")
            assert told[index][:length] == alone.token_ids[:length]
    assert len({tuple(tokens) for tokens in told.values()}) == 3


def test_seeds_stay_in_their_range(executor: Executor) -> None:
    config = SamplingConfig(temperature=1.0, seed=2**63 - 1, num_return_sequences=2)
    assert len(until_final(executor, executor.enqueue_request(request(2, sampling_config=config)))) == 2


def test_reasons(executor: Executor) -> None:
    """Length, the end token, a token that is named as the end, and stop words of several kinds."""
    whole = answer(executor, request(12))
    place = next(i for i in range(3, 12) if whole[i] not in whole[:i])
    text = executor.client.built.text.tokenizer.decode(whole[: place + 1])  # type: ignore[union-attr]
    cases = [
        ({"end_id": whole[place]}, FinishReason.END_ID),
        ({"stop_words": [whole[place - 1 : place + 1]]}, FinishReason.STOP_WORDS),
        ({"stop_words": [[whole[place]]]}, FinishReason.STOP_WORDS),
        ({"stop_words": [text[-2:], [whole[place], 0]]}, FinishReason.STOP_WORDS),
        ({"stop_words": [[whole[place], 0], "\u2603"]}, FinishReason.LENGTH),
    ]
    for fields, reason in cases:
        one = request(12, output_config=EXCLUDED, **fields)
        (response,) = until_final(executor, executor.enqueue_request(one))
        assert response.result.finish_reasons == [reason], fields
        (tokens,) = response.result.output_token_ids
        assert tokens == whole[: len(tokens)]
        if reason is FinishReason.LENGTH:
            assert len(tokens) == 12
        else:
            assert len(tokens) <= place + (reason is not FinishReason.END_ID)
    (response,) = until_final(executor, executor.enqueue_request(request(400, end_id=None)))
    assert response.result.finish_reasons == [FinishReason.LENGTH]  # nothing ends it
    assert len(response.result.output_token_ids[0]) == len(PROMPT) + 400


def test_bias_forces_a_token_and_bad_words_forbid_one(executor: Executor) -> None:
    vocab_size = executor.client.built.text.vocab_size
    bias = torch.zeros(vocab_size)
    bias[77] = 1e4
    assert answer(executor, request(4, embedding_bias=bias)) == [77] * 4
    whole = answer(executor, request(4))
    other = answer(executor, request(4, bad_words=[[whole[0]]]))
    assert whole[0] not in other
    assert answer(executor, request(4, embedding_bias=bias, bad_words=[[77]])) != [77] * 4
    forbidding = torch.zeros(vocab_size)
    forbidding[whole[0]] = -torch.inf
    assert answer(executor, request(1, embedding_bias=forbidding)) == other[:1]


def test_log_probs(executor: Executor) -> None:
    wanted = OutputConfig(return_log_probs=True, top_log_probs=2)
    (whole,) = until_final(executor, executor.enqueue_request(request(5, output_config=wanted)))
    deltas = until_final(executor, executor.enqueue_request(request(5, output_config=wanted, streaming=True)))
    assert whole.result.log_probs is not None
    assert whole.result.log_probs == [[0.0] * 5]  # among the one token that greedy leaves
    assert whole.result.cum_log_probs is not None and whole.result.cum_log_probs[0] < 0  # among all
    for number, one in enumerate(deltas, 1):  # all so far
        assert one.result.log_probs == [pytest.approx(whole.result.log_probs[0][:number], abs=1e-4)]
    assert deltas[-1].result.cum_log_probs == pytest.approx(whole.result.cum_log_probs, abs=1e-4)
    assert whole.result.top_log_probs is not None
    assert [len(top) for top in whole.result.top_log_probs[0]] == [2] * 5
    (plain,) = until_final(executor, executor.enqueue_request(request(5)))
    assert plain.result.log_probs is plain.result.top_log_probs is None


def test_context_logits_come_with_every_response(executor: Executor) -> None:
    one = request(3, streaming=True, output_config=OutputConfig(return_context_logits=True))
    first, *others = until_final(executor, executor.enqueue_request(one))
    assert len(others) == 2
    assert first.result.context_logits is not None
    assert first.result.context_logits.shape == (len(PROMPT), executor.client.built.text.vocab_size)
    assert int(first.result.context_logits[-1].argmax()) == first.result.output_token_ids[0][0]
    for other in others:
        assert other.result.context_logits is not None
        assert torch.equal(other.result.context_logits, first.result.context_logits)


def test_perf_metrics_keep_compiling_apart(executor: Executor) -> None:
    one = request(4, output_config=OutputConfig(return_perf_metrics=True))
    (response,) = until_final(executor, executor.enqueue_request(one))
    metrics = response.result.request_perf_metrics
    assert metrics is not None
    times = metrics.timing_metrics
    assert times.arrival_time <= times.first_scheduled_time <= times.first_token_time <= times.last_token_time
    assert times.guide_compile_s == 0
    assert metrics.first_iter is not None and metrics.last_iter == metrics.first_iter + 3
    blocks = metrics.kv_cache_metrics
    assert blocks.num_total_allocated_blocks == blocks.num_new_allocated_blocks + blocks.num_reused_blocks > 0


def test_what_is_wrong_with_a_request_is_its_response(executor: Executor) -> None:
    vocab_size = executor.client.built.text.vocab_size
    cases = [
        (request(5, bad_words=[[vocab_size]]), "bad_words holds token id"),
        (request(5, stop_words=[[vocab_size]]), "stop_words holds token id"),
        (request(5, end_id=vocab_size), "end_id holds token id"),
        (request(5, embedding_bias=torch.zeros(3)), "embedding_bias has 3 entries"),
        (request(5, sampling_config=SamplingConfig(beam_width=2)), "max_beam_width is 1"),
        (request(5, output_config=OutputConfig(return_generation_logits=True)), "gather_generation_logits"),
        (request(5, logits_post_processor_name="batched"), "processor_batched"),
        (request(5, logits_post_processor_name="sharpen"), "no logits post-processor 'sharpen'"),
    ]
    for one, message in cases:
        (response,) = until_final(executor, executor.enqueue_request(one))
        assert response.has_error()
        assert message in response.error_msg
        with pytest.raises(RequestError, match="has no result"):
            _ = response.result
    too_long = executor.enqueue_request(type(cases[0][0])([5] * 600, 5, client_id=12))
    (response,) = until_final(executor, too_long)
    assert response.has_error() and "max_seq_len" in response.error_msg
    assert (response.request_id, response.client_id) == (too_long, 12)
    (fine,) = until_final(executor, executor.enqueue_request(request(2, client_id=2**64 - 1)))
    assert fine.client_id == 2**64 - 1
    with pytest.raises(InputError, match="has no error"):
        _ = fine.error_msg


def test_one_failing_sequence_ends_the_request(executor: Executor) -> None:
    """One error response, and nothing of its siblings behind it."""

    def failing(request_id: int, logits: torch.Tensor, tokens: list[list[int]], *_: object) -> None:
        if len(tokens[0]) > len(PROMPT) + 2:
            raise RuntimeError("planted in a processor")

    one = request(
        50, logits_post_processor=failing, sampling_config=SamplingConfig(num_return_sequences=3, seed=1)
    )
    number = executor.enqueue_request(one)
    responses = until_final(executor, number)
    assert responses[-1].has_error() and "planted in a processor" in responses[-1].error_msg
    assert "already been processed" in executor.await_responses(number)[0].error_msg


def test_a_bias_that_forbids_everything_is_named(make: Callable[..., Executor]) -> None:
    executor = make()
    bias = torch.full((executor.client.built.text.vocab_size,), -math.inf)
    (response,) = until_final(executor, executor.enqueue_request(request(5, embedding_bias=bias)))
    assert "embedding_bias forbids every one; allow more tokens" in response.error_msg
