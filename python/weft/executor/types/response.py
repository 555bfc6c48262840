"""The executor's `Response`: a `Result` or an error."""

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
    """The reason why a sequence ended."""

    NOT_FINISHED = 0
    END_ID = 1
    STOP_WORDS = 2
    LENGTH = 3
    TIMED_OUT = 4
    CANCELLED = 5


def deserialize_result(data: str | bytes) -> Result:
    """Create a `Result` from the result of `Result.to_json`."""
    return Result.from_json(data.decode() if isinstance(data, bytes) else data)


def shown(value: object) -> str:
    """Format a value for a repr: dtype and shape of a tensor, the repr of anything else."""
    if isinstance(value, torch.Tensor):
        return f"<{str(value.dtype).removeprefix('torch.')} {list(value.shape)}>"
    return repr(value)


@dataclass(eq=False, repr=False)
class AdditionalOutput(Plain):
    """A marked output of the model. For the answer, `output` is [beams, tokens, ...]. For the prompt, it is
    [tokens, ...], and the name begins with "context_".
    """

    name: str
    output: Tensor

    def __repr__(self) -> str:
        return f"AdditionalOutput({self.name!r}, {shown(self.output)})"


@dataclass(eq=False, repr=False)
class Result(Plain):
    """The tokens of one sequence, or of all beams of a beam search. The first dimension of lists is the beam.

    - `is_sequence_final`: this is the last result of sequence `sequence_index`. `is_final`: it is the last of the
      request.
    - `output_token_ids`: the new tokens if the request streams (`Request.streaming`). Otherwise the prompt, unless it
      is excluded, and the answer. The end token is left out. `finish_reasons` has one entry for each beam.
    - `log_probs`: natural log-probabilities of all tokens so far, if requested. `cum_log_probs`: sums of the
      log-probabilities over the whole vocabulary, the end token's included. `top_log_probs`, weft's extension: for each
      token, the most likely tokens at its position with their log-probabilities.
    - `context_logits` [prompt, vocab_size], in every response. `generation_logits` [beams, tokens, vocab_size], or
      [tokens, 1, vocab_size] for the same tokens as `output_token_ids` if the request streams without beams. Both are
      float32, on the CPU.
    - `decoding_iter`: the number of the request's decode iterations so far; 0 with the first token, which the prefill
      gives. `avg_decoded_tokens_per_iter`: tokens so far per decode iteration; None before the first.
    - `encoder_output`, `context_phase_params` and `spec_dec_fast_logits_info` are always None.
    - weft's extensions: `guide_notes` lists the parts of the guide that are not enforced; it is empty for a strict
      guide. `program_log` and `program_variables` come with a sequence's last result if the guide is a program
      (`weft.Output`).
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
        """Every field, with dtype and shape only for tensors."""
        held = ((one.name, getattr(self, one.name)) for one in fields(self))
        return f"Result({', '.join(f'{name}={shown(value)}' for name, value in held)})"


@dataclass
class ResponseData(Plain):
    """The fields of a `Response` as plain data."""

    request_id: int
    result: Result | None = None
    error_msg: str | None = None
    client_id: int | None = None


class Response(Plain):
    """A response to request `request_id`. It holds a `Result` or an error's message (second argument or `error_msg`).
    Access to the other one raises an error."""

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
        """The number that `enqueue_request` returned."""
        return self._request_id

    @property
    def client_id(self) -> int | None:
        """The request's `client_id`."""
        return self._client_id

    def has_error(self) -> bool:
        """Whether the request failed."""
        return self._error_msg is not None

    @property
    def error_msg(self) -> str:
        """The error's message. Raises `InputError` if there is no error."""
        if self._error_msg is None:
            raise InputError(
                f"request {self._request_id} has no error; ask has_error() first, or take its result"
            )
        return self._error_msg

    @property
    def result(self) -> Result:
        """The result. Raises `RequestError` with the error's message if the request failed."""
        if self._result is None:
            raise RequestError(f"request {self._request_id} has no result: {self._error_msg}")
        return self._result

    def clear_context_logits(self) -> None:
        """Release the result's context logits."""
        if self._result is not None:
            self._result.context_logits = None

    def clear_generation_logits(self) -> None:
        """Release the result's generation logits."""
        if self._result is not None:
            self._result.generation_logits = None

    def to_dict(self) -> dict[str, Any]:
        """`request_id`, `client_id`, and either `result` or `error_msg`, as plain data."""
        held = {"error_msg": self._error_msg} if self._result is None else {"result": self._result.to_dict()}
        return {"request_id": self._request_id, "client_id": self._client_id, **held}

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Create a response from the result of `to_json`."""
        return cls(**vars(ResponseData.from_json(text)))

    def __repr__(self) -> str:
        held = repr(self._result) if self._error_msg is None else f"error_msg={self._error_msg!r}"
        return f"Response({self._request_id}, {held}, client_id={self._client_id})"
