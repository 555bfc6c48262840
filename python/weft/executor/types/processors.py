"""The logits post-processors that an executor's requests may name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.errors import InputError
from weft.executor.types.checked import Checked
from weft.executor.types.fields import function, parsed, refused
from weft.executor.types.request import LogitsPostProcessor, Request

RESERVED_PREFIX = "dynamic"


def _parse_map(name: str, value: Any) -> dict[str, LogitsPostProcessor]:
    if not isinstance(value, Mapping):
        raise InputError(f"{name} is {value!r}; it must map names to functions")
    for key, processor in value.items():
        if not isinstance(key, str) or not key or not callable(processor):
            raise InputError(f"{name} maps {key!r} to {processor!r}; it must map names to functions")
        if key == Request.BATCHED_POST_PROCESSOR_NAME or key.startswith(RESERVED_PREFIX):
            raise InputError(
                f'{name} names {key!r}; "{Request.BATCHED_POST_PROCESSOR_NAME}" is processor_batched, and names that '
                f'begin with "{RESERVED_PREFIX}" are kept for requests\' own functions'
            )
    return dict(value)


@dataclass(eq=False)
class LogitsPostProcessorConfig(Checked):
    """Functions that requests name. Each of `processor_map` is called as `(request_id, logits, tokens, stream,
    client_id)`, `processor_batched` once for all requests that name it, with a list of each.
    """

    processor_map: Mapping[str, LogitsPostProcessor] | None = parsed(_parse_map, default=None, optional=True)
    processor_batched: Callable[..., Any] | None = function()
    replicate: bool = refused("there is one rank, where every processor runs", default=True)

    def check(self) -> None:
        super().check()
        if self.processor_map is not None:
            _parse_map("processor_map", self.processor_map)
