"""What of a request an engine can't serve, told before it is queued."""

from __future__ import annotations

from collections.abc import Callable

from weft.config import EngineConfig, Speculation
from weft.core.request import Request
from weft.engine.device.state import DecodeParts
from weft.engine.scheduling.capacity import Capacity
from weft.engine.scheduling.draft_limits import check_drafts
from weft.engine.sequence import Sequence
from weft.errors import CapacityError, InputError
from weft.models.config import ModelConfig

CheckSearch = Callable[[Request], None]


RAISE = "shorten the prompt or raise max_seq_len (of an executor: ExecutorConfig.max_seq_len)"


def advice(model: ModelConfig, max_seq_len: int) -> str:
    """What to do about a prompt that is too long for an engine: `max_seq_len` is no larger than the model is long."""
    if max_seq_len < model.max_position_embeddings:
        return RAISE
    return "shorten the prompt: the model has no more positions"


def check_length(num_tokens: int, max_seq_len: int, advised: str = RAISE) -> None:
    """Raise `CapacityError` for a prompt that leaves no room for an answer."""
    if num_tokens + 1 > max_seq_len:
        raise CapacityError(
            f"the prompt has {num_tokens} tokens, but max_seq_len is {max_seq_len} (prompt and answer); {advised}"
        )


class Admission:
    """Checks requests against what an engine was made for."""

    def __init__(
        self,
        config: EngineConfig,
        speculation: Speculation,
        parts: DecodeParts,
        capacity: Capacity,
        check_search: CheckSearch,
    ) -> None:
        self._config, self._speculation, self._parts = config, speculation, parts
        self._capacity, self._check_search = capacity, check_search

    def check(self, sequence: Sequence) -> None:
        """Raise `InputError` or `CapacityError` for a request that can never be served."""
        check_drafts(sequence, self._speculation, self._parts.model.config.vocab_size)
        if sequence.request.sampling.on_length == "close" and sequence.guide is None:
            raise InputError('on_length is "close", which needs a guide: without one no answer has an end')
        self._parts.outputs.check(sequence.request.gather)
        if sequence.request.beam is not None:
            self._check_search(sequence.request)
        assert self._config.max_seq_len is not None
        if not sequence.prompt:
            raise InputError("the prompt is empty; give at least one token")
        longest = self._config.max_seq_len
        check_length(len(sequence.prompt), longest, advice(self._parts.model.config, longest))
        num_pages, pages = self._capacity.kv.num_pages - 1, self._capacity.pages_needed(sequence)
        if pages > num_pages:
            raise CapacityError(
                f"the request needs {pages} pages, but there are {num_pages}; lower max_tokens or raise "
                "EngineConfig.num_pages (of an executor: KvCacheConfig.max_tokens, to "
                f"{pages * self._config.page_size})"
            )
