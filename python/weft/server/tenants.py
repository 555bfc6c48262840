"""Who asks: API keys by name, and how much each may have under way."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from weft.server.errors import ApiError

ANYBODY = "anybody"
"""What the tenant is called where no key is asked for."""


@dataclass(eq=False)
class Tenant:
    """Somebody with a key, or everybody where no key is asked for. `number` is the engine's client: clients take
    turns."""

    name: str
    number: int
    has_key: bool = True
    num_requests: int = 0
    num_sequences: int = 0

    def salted(self, salt: str | None) -> str | None:
        """The salt of a request's prefixes: tenants with keys do not find each other's, whose reuse could be timed."""
        if not self.has_key:
            return salt
        return f"{self.number}" if salt is None else f"{self.number}/{salt}"


class Tenants:
    """The tenants of a server, how many requests all have under way, and how many are
    being read or answered (`num_inside`). Used on the event loop alone."""

    def __init__(
        self, keys: Mapping[str, str], most_requests: int, most_each: int | None, most_sequences: int
    ) -> None:
        self._most, self._most_each, self._most_sequences = most_requests, most_each, most_sequences
        self._keys = [
            (_digest(key.encode()), Tenant(name, number))
            for number, (name, key) in enumerate(sorted(keys.items()))
        ]
        self._anybody = Tenant(ANYBODY, 0, has_key=False)
        self.num_requests = 0
        self.num_inside = 0

    @property
    def have_keys(self) -> bool:
        """Whether tenants are told apart."""
        return bool(self._keys)

    def of(self, authorization: bytes) -> Tenant | None:
        """Whose key a header holds; None for nobody's. As long for every key that is wrong."""
        if not self._keys:
            return self._anybody
        kind, _, key = authorization.partition(b" ")
        given = _digest(key.strip() if kind.lower() == b"bearer" else b"")
        found = None
        for digest, tenant in self._keys:
            if hmac.compare_digest(digest, given):
                found = tenant
        return found

    @contextmanager
    def answering(self, tenant: Tenant, num_sequences: int) -> Iterator[None]:
        """So many answers under way. Raises `ApiError` where there are others and all are too many."""
        if tenant.num_sequences and tenant.num_sequences + num_sequences > self._most_sequences:
            raise ApiError(
                f"{tenant.num_sequences} answers of this key are under way; {num_sequences} more would be above "
                f"{self._most_sequences}: try again when some have ended",
                429,
                code="too_many_answers",
                retry_after_s=1,
            )
        tenant.num_sequences += num_sequences
        try:
            yield
        finally:
            tenant.num_sequences -= num_sequences

    @contextmanager
    def admitted(self, tenant: Tenant) -> Iterator[None]:
        """A request under way, from its headers to the end of its answer. Raises `ApiError` where there are too
        many."""
        if self._most_each is not None and tenant.num_requests >= self._most_each:
            raise ApiError(
                f"{tenant.num_requests} requests of this key are under way, as many as one may have; try again when "
                "one has ended",
                429,
                code="too_many_requests",
                retry_after_s=1,
            )
        if self.num_requests >= self._most:
            raise ApiError(
                f"{self.num_requests} requests are under way, as many as the server takes; try again later",
                503,
                code="server_full",
                retry_after_s=1,
            )
        tenant.num_requests += 1
        self.num_requests += 1
        try:
            yield
        finally:
            tenant.num_requests -= 1
            self.num_requests -= 1


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
