"""What requests and their answers hold, in bytes, about: for bounds on their sum, which need no more than the order of
magnitude, and must not cost more to work out than the thing itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from weft.client.responses import ResponseDelta
from weft.core import Output
from weft.core.request import Request
from weft.grammar.guide import Guide

SEQUENCE_BYTES = 4096
"""An engine's request, its output and their bookkeeping."""
DELTA_BYTES = 256
TOKEN_BYTES = 48
"""A token id: a number, and its places in lists. Of a prompt as text, a letter counts as much."""
PLACE_BYTES = 8
LETTER_BYTES = 16
"""A letter of a word to watch for, in what finds it."""
WORD_BYTES = 100
GUIDE_LETTER_BYTES = 8
LOGPROB_BYTES = 250
TOP_BYTES = 100


def request_bytes(request: Request) -> int:
    """What a request holds before it is answered."""
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
    """What the answer of a sequence holds."""
    held = (TOKEN_BYTES + PLACE_BYTES) * len(output.token_ids)
    if output.logprobs:
        held += sum(LOGPROB_BYTES + TOP_BYTES * len(entry.top) for entry in output.logprobs)
    tensors = (output.generation_logits, output.context_logits, *output.additional.values())
    held += sum(trace.num_bytes for trace in {beam.trace for beam in output.hypotheses} if trace is not None)
    return held + _tensor_bytes(tensors)


def delta_bytes(delta: ResponseDelta) -> int:
    """What waits with a delta: beams are kept as they were."""
    beams = sum(TOKEN_BYTES * len(beam.token_ids) for beam in delta.beams)
    return DELTA_BYTES + beams + len(delta.error)


def _words_bytes(words: Sequence[str | Sequence[int]]) -> int:
    return sum(
        WORD_BYTES + (LETTER_BYTES if isinstance(word, str) else TOKEN_BYTES) * len(word) for word in words
    )


def _tensor_bytes(tensors: Iterable[Tensor | None]) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
