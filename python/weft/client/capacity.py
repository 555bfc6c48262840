"""Limits on the requests that a client holds at a time, and the checks before it takes more.

The limits on memory use estimates of the host memory of requests and answers, in bytes. The limits are on sums, so the
order of magnitude is enough. An estimate must be cheap compared with the request itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from weft.client.responses import ResponseDelta
from weft.core import Output
from weft.core.request import OWN_NAMES, FieldNames, Request
from weft.errors import CapacityError, InputError
from weft.grammar.guide import Guide

# -- estimates

SEQUENCE_BYTES = 4096
"""A sequence with its output and bookkeeping."""
DELTA_BYTES = 256
TOKEN_BYTES = 48
"""A token id: an integer object and its entries in lists. A character of a prompt or `given` text counts the same."""
PLACE_BYTES = 8
LETTER_BYTES = 16
"""A character of a stop word or bad word, in the automaton that finds it."""
WORD_BYTES = 100
GUIDE_LETTER_BYTES = 8
LOGPROB_BYTES = 250
TOP_BYTES = 100


def request_bytes(request: Request) -> int:
    """The size of a request without its answer."""
    prompt = len(request.prompt)
    held = request.num_sequences * (SEQUENCE_BYTES + PLACE_BYTES * prompt) + TOKEN_BYTES * prompt
    held += _words_bytes(request.sampling.bad_words) + _words_bytes(request.watched_words)
    held += TOKEN_BYTES * len(request.given)
    if request.bias is not None:
        held += request.bias.nbytes
    if isinstance(request.guide, Guide):
        held += GUIDE_LETTER_BYTES * len(request.guide.source)
    return held


def answer_bytes(output: Output) -> int:
    """The size of a sequence's answer."""
    held = (TOKEN_BYTES + PLACE_BYTES) * len(output.token_ids)
    if output.logprobs:
        held += sum(LOGPROB_BYTES + TOP_BYTES * len(entry.top) for entry in output.logprobs)
    tensors = (output.generation_logits, output.context_logits, *output.additional.values())
    held += sum(trace.num_bytes for trace in {beam.trace for beam in output.hypotheses} if trace is not None)
    return held + _tensor_bytes(tensors)


def delta_bytes(delta: ResponseDelta) -> int:
    """The size of a delta. The tokens do not count, because the sequence holds them. The beams count, because they are
    copies."""
    beams = sum(TOKEN_BYTES * len(beam.token_ids) for beam in delta.beams)
    return DELTA_BYTES + beams + len(delta.error)


def _words_bytes(words: Sequence[str | Sequence[int]]) -> int:
    return sum(
        WORD_BYTES + (LETTER_BYTES if isinstance(word, str) else TOKEN_BYTES) * len(word) for word in words
    )


def _tensor_bytes(tensors: Iterable[Tensor | None]) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


# -- limits


@dataclass(frozen=True)
class ClientLimits:
    """Limits on the requests of a client. None: no limit.

    - `max_sequences`: sequences of one request.
    - `max_queue_size`: sequences that wait.
    - `max_pending_bytes`: estimated size of all requests that have not ended.
    - `max_unread_responses`: unread responses of one request. Above it, and above two for each sequence, they are
      merged.
    - `max_unread_bytes`: estimated size of the requests that have ended with unread responses. Above it, the oldest are
      forgotten. With this limit, a request that ends also releases its guide, and its error's traceback and cause.
    """

    max_sequences: int = 1024
    max_queue_size: int | None = None
    max_pending_bytes: int | None = None
    max_unread_responses: int | None = None
    max_unread_bytes: int | None = None


NO_LIMITS = ClientLimits()


class QueueSize(NamedTuple):
    """The space that a request takes in the queue; `num_bytes` is an estimate."""

    num_sequences: int
    num_bytes: int


def queue_size(request: Request) -> QueueSize:
    """The space that a request would take in the queue."""
    return QueueSize(request.num_sequences, request_bytes(request))


def check_sequences(request: Request, limits: ClientLimits) -> None:
    """Raise `InputError` for a request with more than `limits.max_sequences` sequences."""
    limit, names = limits.max_sequences, request.names
    if request.num_sequences > limit:
        advice = names.or_raise("max_sequences") if "max_sequences" in names.settings else ""
        raise InputError(
            f"{names.answers} is {request.num_sequences}, but {names.label('max_sequences')} is {limit}: a request has "
            f"{limit} sequences at most; lower it{advice}"
        )


def check_room(
    limits: ClientLimits,
    waiting: int,
    pending_bytes: int,
    sizes: Iterable[QueueSize],
    names: FieldNames = OWN_NAMES,
) -> None:
    """Raise `CapacityError` if requests of these `sizes` would exceed `max_queue_size` or `max_pending_bytes`.
    `waiting` sequences and `pending_bytes` are in use already."""
    sizes = list(sizes)
    more, most = sum(size.num_sequences for size in sizes), limits.max_queue_size
    if most is not None and waiting + more > most:
        raise CapacityError(
            f"the queue is full: {waiting} sequences wait, {more} more would be above max_queue_size, {most}; "
            f"try again when requests were begun or have ended{names.or_raise('max_queue_size')}"
        )
    held, most = sum(size.num_bytes for size in sizes), limits.max_pending_bytes
    if most is not None and pending_bytes + held > most:
        raise CapacityError(
            f"the queue is full: requests that have not ended hold {pending_bytes} bytes, {held} more would be above "
            f"max_pending_bytes, {most}; try again when requests have "
            f"ended{names.or_raise('max_pending_bytes')}"
        )
