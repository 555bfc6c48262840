"""What a search by beams can't do."""

from __future__ import annotations

from weft.config import EngineConfig, Speculation
from weft.core.request import MAX_END_TOKENS, Request
from weft.engine.beam.search import BeamWords
from weft.errors import InputError


def check_beam_width(max_beam_width: int, speculation: Speculation, config: EngineConfig) -> None:
    """Raise `InputError` unless an engine can be made for beam searches as wide as `max_beam_width`."""
    if max_beam_width < 1:
        raise InputError(f"the beam width is {max_beam_width}; it must be 1 (no beams) or more")
    if max_beam_width > config.max_batch:
        raise InputError(
            f"max_beam_width is {max_beam_width}, but {config.max_batch} sequences are decoded at once; raise "
            "max_batch (of an executor: max_batch_size), or lower the width"
        )
    if max_beam_width > 1 and speculation.drafters:
        raise InputError(
            f"beam search does not work with speculation ({speculation.name}): use Speculation.none(), or a "
            "max_beam_width of 1"
        )


def check_width(request: Request, max_beam_width: int) -> None:
    """Raise `InputError` for a search that is wider than the engine was made for."""
    if request.beam is not None and request.beam.width > max_beam_width:
        raise InputError(
            f"the beam width is {request.beam.width}, but this engine searches with {max_beam_width} at most; "
            "lower it, or raise max_beam_width"
        )


def check_search(request: Request) -> None:
    """Raise `InputError` for what a search by beams can't do."""
    if request.beam is None:
        return
    sampling, words = request.sampling, request.watch_stop_words()
    for name, neutral in (("top_k", 0), ("top_p", 1), ("min_p", 0), ("top_p_decay", 1)):
        if getattr(sampling, name) != neutral:
            raise InputError(
                f"{name} is {getattr(sampling, name)}; beams are not drawn, they follow the likeliest tokens: "
                "leave it out, or use a beam width of 1"
            )
    if len(sampling.stop_token_ids) > MAX_END_TOKENS:
        raise InputError(
            f"stop_token_ids has {len(sampling.stop_token_ids)} entries; beams, which must offer so many more "
            f"continuations each, take {MAX_END_TOKENS}"
        )
    if words is not None and not isinstance(words, BeamWords):
        raise InputError(
            f"{type(words).__name__} can't watch several beams for stop words: give one with fork()"
        )
