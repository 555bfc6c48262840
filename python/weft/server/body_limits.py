"""Bodies as they come: how long one may be, and all that are held together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from starlette.types import Message, Receive

from weft.server.errors import ApiError

LINGER_S, LINGER_BODIES = 1.0, 4
"""Of a body that is refused so many times the limit are read and dropped, for so long."""


class TooLargeError(ApiError):
    """The body is longer than the server reads."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the body has more than the {most} bytes that are read", 413, code="body_too_large")


class HeldBodies:
    """The bytes of all bodies that are held, from when they come to the end of their answers."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.num_bytes = most_bytes, 0


class LimitedBody:
    """What an application receives of a body: parts of `most_bytes` together, since chunked bodies tell no length, and
    no more than there is room for among those that are held. Raises `ApiError` beyond. It is held within `with`.
    `received` is called with the bytes of each part, and whether it is the last."""

    def __init__(self, receive: Receive, most_bytes: int, held: HeldBodies) -> None:
        self.most_bytes = most_bytes
        self._receive, self._held = receive, held
        self._num_bytes, self._is_whole = 0, False
        self.received: Callable[[int, bool], None] | None = None

    async def __call__(self) -> Message:
        message = await self._receive()
        size = len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        self._num_bytes += size
        self._held.num_bytes += size
        if self._num_bytes > self.most_bytes:
            raise TooLargeError(self.most_bytes)
        if self._held.num_bytes > self._held.most_bytes:
            raise ApiError(
                f"the bodies of all requests have more than the {self._held.most_bytes} bytes that are held; try again "
                "later",
                503,
                code="bodies_full",
                retry_after_s=1,
            )
        if self.received is not None and message["type"] == "http.request":
            self.received(size, self._is_whole)
        return message

    def __enter__(self) -> LimitedBody:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.num_bytes -= self._num_bytes

    async def discard(self) -> None:
        """Read on for a while: a client that still sends when its connection closes does not get to see the answer."""
        num_bytes = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while not self._is_whole and num_bytes < LINGER_BODIES * self.most_bytes:
                    message = await self._receive()
                    num_bytes += len(message.get("body", b""))
                    self._is_whole = not message.get("more_body", False)
