"""Responses made of what the mailbox holds, on the thread of whoever takes them."""

from __future__ import annotations

from typing import Any

import torch

from weft.core import FinishReason as EngineFinish
from weft.engine.lifecycle import Request as EngineRequest
from weft.executor.mailbox import Answer, Event, Ticket
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


def terminated(request_id: int) -> Response:
    """What there is to say of a request whose last response was taken."""
    message = f"ReqId {request_id} has already been processed and was terminated."
    return Response(request_id, error_msg=message)


def response(ticket: Ticket, event: Event, page_size: int) -> Response:
    """The response that an event stands for."""
    client_id = ticket.request.client_id
    if event.answer is None:
        return Response(ticket.id, error_msg=event.error, client_id=client_id)
    error = event.answer.request.output.error if event.is_finished else None
    if error is not None:
        return Response(ticket.id, error_msg=str(error), client_id=client_id)
    return Response(ticket.id, _result(ticket, event.answer, event, page_size), client_id=client_id)


def finish_reason(request: EngineRequest) -> FinishReason:
    """Why an answer has ended."""
    output = request.output
    if output.finish_reason == "stop":
        return FinishReason.END_ID if output.stopped_by is None else FinishReason.STOP_WORDS
    return REASONS.get(output.finish_reason or "error", FinishReason.NOT_FINISHED)


def _result(ticket: Ticket, answer: Answer, event: Event, page_size: int) -> Result:
    request, output, wanted = ticket.request, answer.request.output, ticket.request.output_config
    is_delta = request.streaming and not request.return_all_generated_tokens
    start = event.start if is_delta else 0
    tokens = output.token_ids[start : event.end]
    has_prompt = not (request.streaming or wanted.exclude_input_from_output)
    result = Result(
        is_final=event.is_final,
        output_token_ids=[[*request.input_token_ids, *tokens] if has_prompt else tokens],
        finish_reasons=[finish_reason(answer.request) if event.is_finished else FinishReason.NOT_FINISHED],
        decoding_iter=event.iteration,
        sequence_index=answer.index,
        is_sequence_final=event.is_finished,
    )
    if wanted.return_log_probs and output.logprobs is not None:
        result.log_probs = [[entry.logprob for entry in output.logprobs[start : event.end]]]
        result.cum_log_probs = [sum(entry.logprob for entry in output.logprobs[: event.end])]
        if wanted.top_log_probs:
            result.top_log_probs = [[dict(entry.top) for entry in output.logprobs[start : event.end]]]
    if wanted.return_perf_metrics and event.is_finished:
        result.request_perf_metrics = _metrics(answer.request, page_size)
    _add_tensors(result, ticket, output, start, event)
    return result


def _add_tensors(result: Result, ticket: Ticket, output: Any, start: int, event: Event) -> None:
    """Logits and the model's other tensors; those of the prompt come with the first response of a sequence."""
    wanted, is_first = ticket.request.output_config, event.start == 0
    if wanted.return_context_logits and is_first:
        result.context_logits = output.context_logits
    if wanted.return_generation_logits:
        result.generation_logits = _rows(output.generation_logits, start, event.end)[None]
    for additional in wanted.additional_model_outputs:
        rows = _rows(output.additional[additional.name], start, event.end)
        result.additional_outputs.append(AdditionalOutput(additional.name, rows))
        if additional.gather_context and is_first:
            name = f"context_{additional.name}"
            result.additional_outputs.append(AdditionalOutput(name, output.additional[name]))


def _rows(rows: Any, start: int, end: int) -> torch.Tensor:
    """Rows `start` to `end` of a tensor, or of a list of tensors."""
    chosen = rows[start:end]
    return chosen if isinstance(chosen, torch.Tensor) else torch.stack(list(chosen))


def _metrics(request: EngineRequest, page_size: int) -> PerfMetrics:
    stats, arrived = request.output.stats, request.created
    has_begun = request.started > 0
    timing = TimingMetrics(
        arrival_time=arrived,
        guide_ready_time=arrived + stats.compile_s if request.guide is not None else None,
        first_scheduled_time=request.started if has_begun else None,
        first_token_time=arrived + stats.time_to_first_token_s if stats.output_tokens else None,
        last_token_time=request.started + stats.total_s if stats.output_tokens else None,
    )
    drafting = SpeculativeDecodingMetrics(total_accepted_draft_tokens=stats.accepted_drafts)
    return PerfMetrics(timing, _kv_metrics(request, page_size) if has_begun else KvCacheMetrics(), drafting)


def _kv_metrics(request: EngineRequest, page_size: int) -> KvCacheMetrics:
    """The blocks of the request's text; a block that was found in part and copied is fresh."""
    total = -(-(len(request.prompt) + len(request.output.token_ids)) // page_size)
    found = request.output.stats.reused_tokens // page_size
    missed = len(request.prompt) // page_size - found
    rate = found / (found + missed) if found + missed else 0.0
    return KvCacheMetrics(total, total - found, found, missed, rate)
