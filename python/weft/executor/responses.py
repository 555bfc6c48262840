"""Converts deltas to the executor's responses. This runs on the thread that takes them."""

from __future__ import annotations

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from weft.client import responses
from weft.client.responses import ResponseDelta
from weft.core import FinishReason as EngineFinish
from weft.core import Hypothesis, Output, TokenLogprob
from weft.engine.sequence import Sequence
from weft.executor.metrics import perf_metrics
from weft.executor.types import AdditionalOutput, FinishReason, Response, Result

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
    """The error response for a request that is gone: its last response was taken, or it was forgotten."""
    message = f"ReqId {request_id} has already been processed and was terminated."
    return Response(request_id, error_msg=FORGOTTEN.format(id=request_id) if was_forgotten else message)


def response(submitted: responses.Response, delta: ResponseDelta) -> Response:
    """The response for a delta."""
    client_id = submitted.request.tag.client_id
    if delta.sequence is None or delta.error:
        return Response(submitted.id, error_msg=delta.error, client_id=client_id)
    return Response(submitted.id, _result(submitted, delta.sequence, delta), client_id=client_id)


def finish_reason(output: Output) -> FinishReason:
    """The reason why an answer has ended."""
    return reason_of(output.finish_reason, output.stopped_by)


def reason_of(reason: EngineFinish | None, stopped_by: str | int | None) -> FinishReason:
    """Convert the engine's finish reason. `stopped_by` is the stop word or stop token that ended the answer, if any."""
    if reason == "stop":
        return FinishReason.END_ID if stopped_by is None else FinishReason.STOP_WORDS
    return FinishReason.NOT_FINISHED if reason is None else REASONS[reason]


def _result(submitted: responses.Response, sequence: Sequence, delta: ResponseDelta) -> Result:
    request, output = submitted.request.tag, sequence.output
    wanted = request.output_config
    reason = finish_reason(output) if delta.is_finished else FinishReason.NOT_FINISHED
    # The answer does not include the end token.
    end = delta.end - 1 if reason is FinishReason.END_ID and sequence.hypotheses is None else delta.end
    start = delta.start if request.streaming and not request.return_all_generated_tokens else 0
    tokens = output.token_ids[start:end]
    has_prompt = not (request.streaming or wanted.exclude_input_from_output)
    result = Result(
        is_final=delta.is_final,
        output_token_ids=[[*request.input_token_ids, *tokens] if has_prompt else tokens],
        finish_reasons=[reason],
        decoding_iter=delta.iteration,
        sequence_index=sequence.index,
        is_sequence_final=delta.is_finished,
        guide_notes=output.guide_notes,
        avg_decoded_tokens_per_iter=delta.end / delta.iteration if delta.iteration else None,
    )
    if sequence.hypotheses is not None:
        _fill_beams(result, submitted, delta, reason, has_prompt)
    elif wanted.return_log_probs and output.logprobs is not None:
        entries = output.logprobs[: delta.end]
        result.log_probs = [[entry.logprob for entry in entries[:end]]]
        result.cum_log_probs = [sum(map(unnormalized, entries))]
        if wanted.top_log_probs:
            result.top_log_probs = [[dict(entry.top) for entry in entries[:end]]]
    if wanted.return_perf_metrics:
        result.request_perf_metrics = perf_metrics(request, output, delta)
    if delta.is_finished:
        result.program_log, result.program_variables = output.program_log, output.program_variables
    if sequence.hypotheses is None:
        _add_tensors(result, submitted, output, start, end)
    _add_context(result, submitted, output)
    return result


def unnormalized(entry: TokenLogprob) -> float:
    """A token's log-probability over the whole vocabulary. Cumulative log-probabilities are sums of these."""
    return entry.logprob if entry.unnormalized is None else entry.unnormalized


def _fill_beams(
    result: Result,
    submitted: responses.Response,
    delta: ResponseDelta,
    reason: FinishReason,
    has_prompt: bool,
) -> None:
    """Set the tokens, reasons, log-probabilities and tensors of all beams. Until the request ends, every beam is
    NOT_FINISHED. Then a beam that has not ended itself gets the request's reason."""
    # Send every beam from its start: after an iteration, beam i may continue another beam's tokens.
    prompt = list(submitted.request.tag.input_token_ids) if has_prompt else []
    reasons = [_beam_reason(beam, reason) for beam in delta.beams]
    ends = [
        len(beam.token_ids) - (_beam_reason(beam, FinishReason.NOT_FINISHED) is FinishReason.END_ID)
        for beam in delta.beams
    ]
    if delta.beams:
        result.output_token_ids = [
            prompt + beam.token_ids[:end] for beam, end in zip(delta.beams, ends, strict=True)
        ]
        result.finish_reasons = reasons if delta.is_finished else [FinishReason.NOT_FINISHED] * len(reasons)
    if submitted.request.tag.output_config.return_log_probs:
        result.log_probs = [list(beam.log_probs[:end]) for beam, end in zip(delta.beams, ends, strict=True)]
        result.cum_log_probs = [beam.cum_log_prob for beam in delta.beams]
        if submitted.request.tag.output_config.top_log_probs:
            result.top_log_probs = [
                (beam.top_log_probs or [])[:end] for beam, end in zip(delta.beams, ends, strict=True)
            ]
    _add_beams_tensors(result, submitted, delta.beams, ends)


def _add_beams_tensors(
    result: Result, submitted: responses.Response, beams: tuple[Hypothesis, ...], ends: list[int]
) -> None:
    """Add the tensors of each beam's tokens. Shorter beams are padded with zeros."""
    wanted = submitted.request.tag.output_config
    if wanted.return_generation_logits:
        logits = _stacked([beam.generation_logits for beam in beams], ends)
        result.generation_logits = None if logits is None else logits.float()
    for additional in wanted.additional_model_outputs or ():
        stacked = _stacked([beam.additional.get(additional.name) for beam in beams], ends)
        if stacked is not None:
            result.additional_outputs.append(AdditionalOutput(additional.name, stacked))


def _stacked(beams: list[Tensor | None], ends: list[int]) -> Tensor | None:
    """The first `ends[i]` rows of each beam, padded to [beams, tokens, ...]; None unless every beam has rows."""
    rows = [beam[:end] for beam, end in zip(beams, ends, strict=True) if beam is not None]
    return pad_sequence(rows, batch_first=True) if rows and len(rows) == len(beams) else None


def _beam_reason(beam: Hypothesis, otherwise: FinishReason) -> FinishReason:
    return otherwise if beam.finish_reason is None else reason_of(beam.finish_reason, beam.stopped_by)


def _add_tensors(result: Result, submitted: responses.Response, output: Output, start: int, end: int) -> None:
    """Add the logits and the model's marked outputs of the answer's tokens `start` to `end` - 1."""
    wanted, streams = submitted.request.tag.output_config, submitted.request.tag.streaming
    if wanted.return_generation_logits and output.generation_logits is not None:
        rows = output.generation_logits[start:end].float()
        result.generation_logits = rows[:, None] if streams else rows[None]
    for additional in wanted.additional_model_outputs or ():
        name = additional.name
        if name in output.additional:
            result.additional_outputs.append(AdditionalOutput(name, output.additional[name][start:end][None]))


def _add_context(result: Result, submitted: responses.Response, output: Output) -> None:
    """Add the prompt's tensors. Every response holds them completely."""
    wanted = submitted.request.tag.output_config
    if wanted.return_context_logits and output.context_logits is not None:
        result.context_logits = output.context_logits.float()
    for additional in wanted.additional_model_outputs or ():
        context = f"context_{additional.name}"
        if additional.gather_context and context in output.additional:
            result.additional_outputs.append(AdditionalOutput(context, output.additional[context]))
