"""Validates requests before they are queued: options, token ids, lengths and pages.

Error messages use the option names of the front that made the request (`FieldNames`).
"""

from __future__ import annotations

from collections import abc

from weft.config import EngineConfig, ExecutionConfig, Lookahead, ResolvedConfig, Speculation
from weft.core.request import MAX_END_TOKENS, OWN_NAMES, BeamWords, FieldNames, Gather, Request
from weft.core.sampling import NOT_FOR_BEAMS
from weft.core.values import set_fields
from weft.engine.device.state import DecodeParts
from weft.engine.scheduler.scheduler import Capacity
from weft.engine.sequence import Sequence
from weft.errors import CapacityError, InputError
from weft.models.config import ModelConfig


class Admission:
    """Validates sequences before they are queued."""

    def __init__(
        self, config: ResolvedConfig, speculation: Speculation, parts: DecodeParts, capacity: Capacity
    ) -> None:
        self._config, self._speculation, self._capacity = config, speculation, capacity
        self._model = parts.model.config

    def check(self, sequence: Sequence) -> None:
        """Raise `InputError` or `CapacityError` for a sequence that this engine can never serve."""
        request, config = sequence.request, self._config
        check_options(request, config, self._speculation)
        check_token_ids(request.names.given, request.given_ids, self._model.vocab_size)
        if request.sampling.on_length == "close" and sequence.guide is None:
            raise InputError('on_length is "close", which needs a guide: without one no answer has an end')
        if not sequence.prompt:
            raise InputError("the prompt is empty; give at least one token")
        longest = config.max_seq_len
        check_length(len(sequence.prompt), longest, can_grow(self._model, longest), request.names)
        # Page 0 is reserved for padding, so no sequence gets it.
        num_pages, pages = self._capacity.kv.num_pages - 1, self._capacity.pages_needed(sequence)
        if pages > num_pages:
            raise CapacityError(
                f"the request needs {pages} pages of {config.page_size} tokens, but there are {num_pages}; lower "
                f"max_tokens{request.names.or_raise('num_pages')}"
            )


def check_options(request: Request, config: EngineConfig, speculation: Speculation) -> None:
    """Raise `InputError` for options of a request that the engine does not support."""
    names = request.names
    if request.beam is not None:
        width, limit = request.beam.width, config.max_beam_width
        if width > limit:
            raise InputError(
                f"beam_width is {width}, but {names.label('max_beam_width')} is {limit}; lower "
                f"it{names.or_raise('max_beam_width')}"
            )
        check_search(request)
    if request.given and "given" not in speculation.drafters:
        advice = "; make it with Speculation.given(), or Speculation.given(then) before another drafter"
        raise InputError(
            f"{names.given} is text to draft, but this engine does not draft given text{advice if names.config else ''}"
        )
    if request.lookahead is not None:
        check_lookahead(request.lookahead, speculation)
    check_gather(request.gather, config, names)


def check_search(request: Request) -> None:
    """Raise `InputError` for options that beam search does not support."""
    sampling, words = request.sampling, request.watch_stop_words()
    refused = set_fields(sampling, NOT_FOR_BEAMS)
    if refused:
        name, value = refused[0], getattr(sampling, refused[0])
        raise InputError(
            f"{name} is {value}; beams are not sampled, they follow the likeliest tokens: leave it out, or "
            f"{request.names.no_beams}"
        )
    if len(sampling.stop_token_ids) > MAX_END_TOKENS:
        raise InputError(
            f"stop_token_ids has {len(sampling.stop_token_ids)} entries; beams, which need one more continuation for "
            f"each, take {MAX_END_TOKENS}"
        )
    if words is not None and not isinstance(words, BeamWords):
        raise InputError(
            f"{type(words).__name__} can't watch several beams for stop words: give one with fork()"
        )


def check_lookahead(sizes: Lookahead, speculation: Speculation) -> None:
    """Raise `InputError` if the request's lookahead sizes exceed those of the engine's `speculation`."""
    limits = speculation.lookahead_sizes
    if limits is None:
        raise InputError(
            "the request has sizes of lookahead decoding, but this engine does not use it; make it with "
            "Speculation.lookahead()"
        )
    sizes.check_within(limits)


def check_gather(gather: Gather, config: ExecutionConfig, names: FieldNames) -> None:
    """Raise `InputError` if a request asks for tensors that the engine does not gather."""
    if gather.generation_logits and not config.gather_generation_logits:
        raise InputError(
            "return_generation_logits needs an engine with memory for them"
            f"{names.or_set('gather_generation_logits')}"
        )
    known = dict(config.additional_outputs)
    advice = f": name it in {names.config}.{names.label('additional_outputs')}" if names.config else ""
    for name in gather.names:
        if name not in known:
            raise InputError(
                f"{names.outputs} asks for {name!r}; the engine gathers {', '.join(known) or 'none'}{advice}"
            )
    for name in gather.context_names:
        if not known.get(name):
            raise InputError(
                f"{names.outputs} asks for {name!r} of the prompt, which the engine does not gather{advice}, with its "
                "context"
            )


def check_token_ids(name: str, tokens: abc.Sequence[int], vocab_size: int) -> None:
    """Raise `InputError` unless all `tokens` are in the model's vocabulary."""
    if not tokens or (min(tokens) >= 0 and max(tokens) < vocab_size):
        return
    invalid = next(t for t in tokens if not 0 <= t < vocab_size)
    raise InputError(f"{name} holds token id {invalid}; ids of this model are 0 to {vocab_size - 1}")


def can_grow(model: ModelConfig, max_seq_len: int) -> bool:
    """Whether the model has positions beyond `max_seq_len`, so that a higher limit would admit longer texts."""
    return max_seq_len < model.max_position_embeddings


def check_length(
    num_tokens: int, max_seq_len: int, can_grow: bool = True, names: FieldNames = OWN_NAMES
) -> None:
    """Raise `CapacityError` for a prompt that leaves no room for at least one token of the answer."""
    if num_tokens + 1 > max_seq_len:
        raise CapacityError(
            f"the prompt has {num_tokens} tokens, but {names.label('max_seq_len')} is {max_seq_len} (prompt and "
            f"answer); {shorten(can_grow, names)}"
        )


def shorten(can_grow: bool, names: FieldNames) -> str:
    """The advice in the error for a prompt that is too long."""
    if not can_grow:
        return "shorten the prompt: the model has no more positions"
    return f"shorten the prompt{names.or_raise('max_seq_len')}"
