"""What requests and their answers hold, in bytes, about: for bounds on their sum, which need no more than the order of
magnitude, and must not cost more to work out than the thing itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from weft.engine.request import Request as EngineRequest
from weft.executor.tickets import Event
from weft.executor.types import Request

SEQUENCE_BYTES = 4096
"""An engine's request, its output and their bookkeeping."""
EVENT_BYTES = 256
TOKEN_BYTES = 48
"""A token id: a number, and its places in lists."""
PLACE_BYTES = 8
LETTER_BYTES = 16
"""A letter of a word to watch for, in what finds it."""
WORD_BYTES = 100
GUIDE_LETTER_BYTES = 8
LOGPROB_BYTES = 250
TOP_BYTES = 100


def request_bytes(request: Request, num_sequences: int) -> int:
    """What a request holds before it is answered, with so many sequences."""
    prompt = len(request.input_token_ids)
    held = num_sequences * (SEQUENCE_BYTES + PLACE_BYTES * prompt) + TOKEN_BYTES * prompt
    held += _words_bytes(request.bad_words or ()) + _words_bytes(request.stop_words or ())
    if request.embedding_bias is not None:
        held += request.embedding_bias.nbytes
    if request.external_draft_tokens_config is not None:
        held += TOKEN_BYTES * len(request.external_draft_tokens_config.tokens)
    if request.guided_decoding_params is not None:
        held += GUIDE_LETTER_BYTES * len(request.guided_decoding_params.guide or "")
    return held


def answer_bytes(request: EngineRequest) -> int:
    """What the answer of a sequence holds."""
    output = request.output
    held = (TOKEN_BYTES + PLACE_BYTES) * len(output.token_ids)
    if output.logprobs:
        held += sum(LOGPROB_BYTES + TOP_BYTES * len(entry.top) for entry in output.logprobs)
    tensors = (output.generation_logits, output.context_logits, *output.additional.values())
    return held + _tensor_bytes(tensors)


def event_bytes(event: Event) -> int:
    """What waits with an event: beams are kept as they were."""
    beams = sum(TOKEN_BYTES * len(beam.token_ids) for beam in event.beams)
    return EVENT_BYTES + beams + len(event.error)


def _words_bytes(words: Sequence[str | Sequence[int]]) -> int:
    return sum(
        WORD_BYTES + (LETTER_BYTES if isinstance(word, str) else TOKEN_BYTES) * len(word) for word in words
    )


def _tensor_bytes(tensors: Iterable[Tensor | None]) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
