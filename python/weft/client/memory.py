"""Estimates of the host memory of requests and their answers, in bytes.

The estimates serve limits on sums, where the order of magnitude is enough. An estimate must be cheap compared with
the request itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from weft.client.responses import ResponseDelta
from weft.core import Output
from weft.core.request import Request
from weft.grammar.guide import Guide

SEQUENCE_BYTES = 4096
"""A sequence with its output and bookkeeping."""
DELTA_BYTES = 256
TOKEN_BYTES = 48
"""A token id: an integer object and its entries in lists. A character of a text prompt counts the same."""
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
