"""Responses made of deltas, on the thread that takes them."""

from __future__ import annotations

from weft.client.handles import AnswerSequence, RequestHandle, ResponseDelta
from weft.core import FinishReason as EngineFinish
from weft.core import Hypothesis, Output
from weft.executor.types import (
    AdditionalOutput,
    FinishReason,
    KvCacheMetrics,
    PerfMetrics,
    Response,
    Result,
    SpeculativeDecodingMetrics,
    TimingMetrics,
)

REASONS: dict[EngineFinish, FinishReason] = {
    "length": FinishReason.LENGTH,
    "timeout": FinishReason.TIMED_OUT,
    "cancelled": FinishReason.CANCELLED,
}


FORGOTTEN = (
    "ReqId {id} has ended, and was forgotten: nobody took its responses while those of later requests came, and "
    "together they were more than ExecutorConfig.max_unread_bytes; take responses earlier, drop requests that nobody "
    "waits for (Executor.drop_request), or raise the bound"
)


def terminated(request_id: int, was_forgotten: bool = False) -> Response:
    """What there is to say of a request whose last response was taken, or that was forgotten."""
    message = f"ReqId {request_id} has already been processed and was terminated."
    return Response(request_id, error_msg=FORGOTTEN.format(id=request_id) if was_forgotten else message)


def response(handle: RequestHandle, delta: ResponseDelta, page_size: int) -> Response:
    """The response that a delta stands for."""
    client_id = handle.request.tag.client_id
    if delta.sequence is None or delta.error:
        return Response(handle.id, error_msg=delta.error, client_id=client_id)
    return Response(handle.id, _result(handle, delta.sequence, delta, page_size), client_id=client_id)


def finish_reason(output: Output) -> FinishReason:
    """Why an answer has ended."""
    return reason_of(output.finish_reason, output.stopped_by)


def reason_of(reason: EngineFinish | None, stopped_by: str | int | None) -> FinishReason:
    """The same in the engine's words; `stopped_by` is the stop word or token, if it was one."""
    if reason == "stop":
        return FinishReason.END_ID if stopped_by is None else FinishReason.STOP_WORDS
    return FinishReason.NOT_FINISHED if reason is None else REASONS[reason]


def _result(handle: RequestHandle, sequence: AnswerSequence, delta: ResponseDelta, page_size: int) -> Result:
    request, output = handle.request.tag, sequence.output
    wanted = request.output_config
    is_delta = request.streaming and not request.return_all_generated_tokens
    start = delta.start if is_delta else 0
    tokens = output.token_ids[start : delta.end]
    has_prompt = not (request.streaming or wanted.exclude_input_from_output)
    result = Result(
        is_final=delta.is_final,
        output_token_ids=[[*request.input_token_ids, *tokens] if has_prompt else tokens],
        finish_reasons=[finish_reason(output) if delta.is_finished else FinishReason.NOT_FINISHED],
        decoding_iter=delta.iteration,
        sequence_index=sequence.index,
        is_sequence_final=delta.is_finished,
        guide_notes=output.guide_notes,
    )
    if sequence.hypotheses is not None:
        _fill_beams(result, handle, delta, finish_reason(output), has_prompt)
    elif wanted.return_log_probs and output.logprobs is not None:
        result.log_probs = [[entry.logprob for entry in output.logprobs[start : delta.end]]]
        result.cum_log_probs = [sum(entry.logprob for entry in output.logprobs[: delta.end])]
        if wanted.top_log_probs:
            result.top_log_probs = [[dict(entry.top) for entry in output.logprobs[start : delta.end]]]
    if wanted.return_perf_metrics and delta.is_finished:
        result.request_perf_metrics = _metrics(output, page_size)
    if delta.is_finished:
        result.program_log, result.program_variables = output.program_log, output.program_variables
    _add_tensors(result, handle, output, start, delta)
    return result


def _fill_beams(
    result: Result, handle: RequestHandle, delta: ResponseDelta, reason: FinishReason, has_prompt: bool
) -> None:
    """Every beam as a whole: what a beam was an iteration ago, another one may be now. One that had not ended when the
    request did has the request's reason."""
    prompt = list(handle.request.tag.input_token_ids) if has_prompt else []
    if delta.beams:
        result.output_token_ids = [prompt + beam.token_ids for beam in delta.beams]
        result.finish_reasons = [
            _beam_reason(beam, reason) if delta.is_finished else FinishReason.NOT_FINISHED
            for beam in delta.beams
        ]
    if handle.request.tag.output_config.return_log_probs:
        result.log_probs = [list(beam.log_probs) for beam in delta.beams]
        result.cum_log_probs = [beam.cum_log_prob for beam in delta.beams]


def _beam_reason(beam: Hypothesis, otherwise: FinishReason) -> FinishReason:
    return otherwise if beam.finish_reason is None else reason_of(beam.finish_reason, beam.stopped_by)


def _add_tensors(
    result: Result, handle: RequestHandle, output: Output, start: int, delta: ResponseDelta
) -> None:
    """Logits and the model's other tensors; those of the prompt come with the first response of a sequence."""
    wanted, is_first = handle.request.tag.output_config, delta.start == 0
    if wanted.return_context_logits and is_first:
        logits = output.context_logits
        result.context_logits = None if logits is None else logits.float()
    if wanted.return_generation_logits:
        logits = output.generation_logits  # None where the request ended before its first token
        result.generation_logits = None if logits is None else logits[start : delta.end].float()[None]
    for additional in wanted.additional_model_outputs:
        name = additional.name
        if name in output.additional:
            rows = output.additional[name][start : delta.end]
            result.additional_outputs.append(AdditionalOutput(name, rows))
        context = f"context_{name}"
        if additional.gather_context and is_first and context in output.additional:
            result.additional_outputs.append(AdditionalOutput(context, output.additional[context]))


def _metrics(output: Output, page_size: int) -> PerfMetrics:
    stats = output.stats
    timing = TimingMetrics(
        arrival_time=stats.submitted_at,
        guide_ready_time=stats.guide_ready_at,
        first_scheduled_time=stats.scheduled_at,
        first_token_time=stats.first_token_at,
        last_token_time=stats.last_token_at,
    )
    drafting = SpeculativeDecodingMetrics(stats.acceptance_rate, stats.accepted_drafts, stats.proposed_drafts)
    blocks = _kv_metrics(output, page_size) if stats.scheduled_at is not None else KvCacheMetrics()
    first, last = stats.first_turn, stats.last_turn
    return PerfMetrics(timing, blocks, drafting, first_iter=first, last_iter=last, iter=last)


def _kv_metrics(output: Output, page_size: int) -> KvCacheMetrics:
    """The blocks of the request's text; a block that was found in part and copied is fresh."""
    total = -(-(len(output.prompt_token_ids) + len(output.token_ids)) // page_size)
    found = output.stats.reused_tokens // page_size
    missed = len(output.prompt_token_ids) // page_size - found
    rate = found / (found + missed) if found + missed else 0.0
    return KvCacheMetrics(total, total - found, found, missed, rate)
