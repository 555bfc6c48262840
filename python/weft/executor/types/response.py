"""What comes back: a `Response` holds a `Result` or an error."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, Self

import torch

from weft.errors import InputError, RequestError
from weft.executor.types.fields import ByName, Tensor
from weft.executor.types.metrics import RequestPerfMetrics
from weft.executor.types.parallel import ContextPhaseParams
from weft.executor.types.plain import Plain
from weft.executor.types.speculation import SpeculativeDecodingFastLogitsInfo


class FinishReason(ByName, IntEnum):
    """Why a sequence ended."""

    NOT_FINISHED = 0
    END_ID = 1
    STOP_WORDS = 2
    LENGTH = 3
    TIMED_OUT = 4
    CANCELLED = 5


def deserialize_result(data: str | bytes) -> Result:
    """What `Result.to_json` gave, made again."""
    return Result.from_json(data.decode() if isinstance(data, bytes) else data)


def shown(value: object) -> str:
    """A value as text: a tensor by its shape and dtype, anything else by its repr."""
    if isinstance(value, torch.Tensor):
        return f"<{str(value.dtype).removeprefix('torch.')} {list(value.shape)}>"
    return repr(value)


@dataclass(eq=False, repr=False)
class AdditionalOutput(Plain):
    """A tensor of the model's, by name: a row for each token of each beam, [beams, tokens, ...]; of the prompt,
    [tokens, ...], where the name begins with "context_".
    """

    name: str
    output: Tensor

    def __repr__(self) -> str:
        return f"AdditionalOutput({self.name!r}, {shown(self.output)})"


@dataclass(eq=False, repr=False)
class Result(Plain):
    """Tokens of one sequence, or of all beams (the first dimension of lists).

    `is_sequence_final`: nothing more of sequence `sequence_index` follows; `is_final`: nothing more of the request.
    `output_token_ids` hold what the iteration added, where the request streams; else the answer, after the prompt
    unless that is excluded. The token that ended the answer as `end_id` is not among them. `finish_reasons` is one for
    each beam. `log_probs` (natural logarithms) of all tokens so far, where asked for, and `cum_log_probs`: the sum of
    what they are in the whole vocabulary, that of the token that ended the answer among them. `top_log_probs`, weft's
    own, maps, for each token, the likeliest at its place to theirs.
    `context_logits` [prompt, vocab_size], in every response, and `generation_logits` [beams, tokens, vocab_size], or
    [tokens, beams, vocab_size] of an iteration's tokens where the request streams; float32, on the CPU.
    `decoding_iter` is the iteration, from 0, that the request is in, and `avg_decoded_tokens_per_iter` what one gave.
    `encoder_output`, `context_phase_params` and `spec_dec_fast_logits_info` stay None: nothing fills them.
    weft's own: `guide_notes` tell what of the request's guide is not enforced, and there are none where it is strict;
    with a sequence's last response, `program_log` and `program_variables` of a guide that is a program (`weft.Output`).
    """

    is_final: bool = False
    output_token_ids: list[list[int]] = field(default_factory=list)
    cum_log_probs: list[float] | None = None
    log_probs: list[list[float]] | None = None
    context_logits: Tensor | None = None
    generation_logits: Tensor | None = None
    spec_dec_fast_logits_info: SpeculativeDecodingFastLogitsInfo | None = None
    encoder_output: Tensor | None = None
    finish_reasons: list[FinishReason] = field(default_factory=list)
    context_phase_params: ContextPhaseParams | None = None
    decoding_iter: int = 0
    sequence_index: int = 0
    is_sequence_final: bool = False
    request_perf_metrics: RequestPerfMetrics | None = None
    additional_outputs: list[AdditionalOutput] = field(default_factory=list)
    avg_decoded_tokens_per_iter: float | None = None
    top_log_probs: list[list[dict[int, float]]] | None = None
    guide_notes: tuple[str, ...] = ()
    program_log: str | None = None
    program_variables: dict[str, bytes] | None = None

    def __repr__(self) -> str:
        """Every field; of tensors the shape and dtype."""
        held = ((one.name, getattr(self, one.name)) for one in fields(self))
        return f"Result({', '.join(f'{name}={shown(value)}' for name, value in held)})"


@dataclass
class ResponseData(Plain):
    """What `Response.to_dict` gives."""

    request_id: int
    result: Result | None = None
    error_msg: str | None = None
    client_id: int | None = None


class Response(Plain):
    """An answer to request `request_id`: a `Result`, or the message of an error, as the second argument or by its name.
    Asking for the other one raises."""

    def __init__(
        self,
        request_id: int,
        result: Result | str | None = None,
        client_id: int | None = None,
        *,
        error_msg: str | None = None,
    ) -> None:
        if isinstance(result, str) and error_msg is None:
            result, error_msg = None, result
        if (result is None) == (error_msg is None) or not isinstance(result, Result | None):
            raise InputError("a response holds either a Result or an error message; give one of them")
        self._request_id = request_id
        self._result = result
        self._error_msg = error_msg
        self._client_id = client_id

    @property
    def request_id(self) -> int:
        """The number that `enqueue_request` gave."""
        return self._request_id

    @property
    def client_id(self) -> int | None:
        """The number that the request brought along."""
        return self._client_id

    def has_error(self) -> bool:
        """Whether the request failed."""
        return self._error_msg is not None

    @property
    def error_msg(self) -> str:
        """What went wrong. Raises `InputError` where nothing did."""
        if self._error_msg is None:
            raise InputError(
                f"request {self._request_id} has no error; ask has_error() first, or take its result"
            )
        return self._error_msg

    @property
    def result(self) -> Result:
        """The result. Raises `RequestError`, with the message, where the request failed."""
        if self._result is None:
            raise RequestError(f"request {self._request_id} has no result: {self._error_msg}")
        return self._result

    def clear_context_logits(self) -> None:
        """Let go of the result's context logits."""
        if self._result is not None:
            self._result.context_logits = None

    def clear_generation_logits(self) -> None:
        """Let go of the result's generation logits."""
        if self._result is not None:
            self._result.generation_logits = None

    def to_dict(self) -> dict[str, Any]:
        """`request_id`, `client_id`, and either `result` or `error_msg`, as plain data."""
        held = {"error_msg": self._error_msg} if self._result is None else {"result": self._result.to_dict()}
        return {"request_id": self._request_id, "client_id": self._client_id, **held}

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` gave, made again."""
        return cls(**vars(ResponseData.from_json(text)))

    def __repr__(self) -> str:
        held = repr(self._result) if self._error_msg is None else f"error_msg={self._error_msg!r}"
        return f"Response({self._request_id}, {held}, client_id={self._client_id})"
