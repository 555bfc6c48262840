"""A request's logits processor while it is served, on the host or in graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from weft.core.logits_processors import LogitsProcessor
from weft.errors import RequestError


def failure(name: str, error: BaseException) -> RequestError:
    """What ends a request whose processor raised."""
    found = RequestError(f"logits processor {name!r} raised {type(error).__name__}: {error}")
    found.__cause__ = error
    return found


@dataclass(eq=False)
class CapturedProcessor:
    """A device function in use: `number` marks its slots on the device, `users` requests have it. `failure` is what it
    raised."""

    name: str
    function: Callable[..., Any]
    number: int
    users: int = 0
    failure: BaseException | None = field(default=None, repr=False)


@dataclass(eq=False)
class RequestProcessor:
    """One request's processor while it is served: `captured` where graphs hold it; `failure` is what it raised on the
    host."""

    processor: LogitsProcessor
    captured: CapturedProcessor | None = None
    failure: RequestError | None = None

    @property
    def is_on_host(self) -> bool:
        """Whether the host calls it."""
        return not self.processor.allows_capture

    def number_for(self, request_id: int) -> int:
        """What its function is told as the id of request `request_id`."""
        own = self.processor.request_id
        return request_id if own is None else own

    def check(self) -> None:
        """Raise what it raised."""
        if self.failure is not None:
            raise self.failure
        if self.captured is not None and self.captured.failure is not None:
            raise failure(self.captured.name, self.captured.failure)


def kind_of(value: object) -> str:
    """What a processor returned, for a message."""
    return f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__}"
