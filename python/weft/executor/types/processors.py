"""The logits post-processors that an executor's requests may name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from weft.errors import InputError
from weft.executor.types.fields import Wanted
from weft.executor.types.request import LogitsPostProcessor, Request
from weft.executor.types.settings import Settings

RESERVED_PREFIX = "dynamic"
_BY_NAME = "a mapping of names to functions"


class LogitsPostProcessorConfig(Settings):
    """Logits processors that requests select by name. Those in `processor_map` are called as `(request_id, logits,
    tokens, stream, client_id)` for each position. `processor_batched` is called once for all positions of the requests
    that use it, as `(request_ids, logits, tokens, stream, client_ids)`; all arguments but the stream are lists. A
    name may map to None if no request uses it. `replicate` has no effect, because there is one rank.
    """

    processor_map: Annotated[Mapping[str, LogitsPostProcessor | None], Wanted(_BY_NAME)] | None = None
    processor_batched: Callable[..., Any] | None = None
    replicate: bool = True

    def check(self) -> None:
        for name, processor in (self.processor_map or {}).items():
            if not isinstance(name, str) or not name or not (processor is None or callable(processor)):
                raise InputError(
                    f"processor_map maps {name!r} to {processor!r}; it must map names to functions"
                )
            if name == Request.BATCHED_POST_PROCESSOR_NAME or name.startswith(RESERVED_PREFIX):
                raise InputError(
                    f'processor_map names {name!r}; "{Request.BATCHED_POST_PROCESSOR_NAME}" is processor_batched, and '
                    f'names that begin with "{RESERVED_PREFIX}" are kept for requests\' own functions'
                )
