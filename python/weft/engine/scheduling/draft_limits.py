"""What a request says of its drafts: text that it expects as its answer, and how many it may have."""

from __future__ import annotations

from weft.config import Lookahead, Speculation
from weft.engine.sequence import Sequence
from weft.errors import InputError
from weft.guided.proposals import NO_GIVEN_TEXT


def check_drafts(sequence: Sequence, speculation: Speculation, vocab_size: int) -> None:
    """Raise `InputError` for what an engine that drafts by `speculation` can't do for the request."""
    limit = sequence.request.max_drafts
    if limit is not None and limit < 0:
        raise InputError(f"max_drafts is {limit}; it must be at least 0, or None for the engine's")
    if sequence.request.ahead is not None:
        check_ahead(sequence.request.ahead, speculation)
    if not sequence.request.given:
        return
    if "given" not in speculation.drafters:
        raise InputError(NO_GIVEN_TEXT)
    bad = next((token for token in sequence.request.given_ids if not 0 <= token < vocab_size), None)
    if bad is not None:
        raise InputError(
            f"the given text (of an executor's request: external_draft_tokens_config) holds token id {bad}; ids of "
            f"this model are 0 to {vocab_size - 1}"
        )


def check_ahead(sizes: Lookahead, speculation: Speculation) -> None:
    """Raise `InputError` for sizes of lookahead decoding that an engine which drafts by `speculation` does not have."""
    most = speculation.sizes_ahead
    if most is None:
        raise InputError(
            "the request has sizes of lookahead decoding, but this engine does not draft so; make it with "
            "Speculation.lookahead()"
        )
    sizes.check_within(most)


def draft_limit(sequence: Sequence, max_drafts: int) -> int | None:
    """The request's own limit of drafts, where it is below the engine's `max_drafts`; else None."""
    limit = sequence.request.max_drafts
    return limit if limit is not None and limit < max_drafts else None
