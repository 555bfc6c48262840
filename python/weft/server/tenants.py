"""Identifies the tenant of a request by its API key, and limits what each tenant may have in flight.

The limits keep one tenant from starving the others. They apply to requests, bodies still arriving, body bytes,
answers, and connections. All of this runs on the event loop, without locks.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType

from weft.server.errors import ApiError
from weft.server.settings import ServerConfig

ANYBODY = "anybody"
"""The name of the only tenant of a server without keys."""


@dataclass(eq=False)
class Tenant:
    """The owner of an API key. A server without keys has one tenant for all clients.

    `number` is the client id by which the engine's scheduler shares slots. The counts are, in order: requests whose
    body is still arriving, requests in flight, sequences in flight, body bytes held, and open connections.
    """

    name: str
    number: int
    has_key: bool = True
    num_arriving: int = 0
    num_requests: int = 0
    num_sequences: int = 0
    num_body_bytes: int = 0
    num_connections: int = 0

    def salted(self, salt: str | None) -> str | None:
        """Return the cache salt for a request. Tenants with keys do not share cached prefixes, because a fast prefill
        would reveal to one tenant the prompts of another."""
        if not self.has_key:
            return salt
        return f"{self.number}" if salt is None else f"{self.number}/{salt}"


class Tenants:
    """The tenants of a server, and the totals of their counts.

    `num_arriving` counts requests whose body is still arriving. `num_requests` counts requests in flight. `num_inside`
    counts all requests in the server, of any method. `num_body_bytes` counts the bytes of all bodies.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._keys = [
            (_digest(key.encode()), Tenant(name, number))
            for number, (name, key) in enumerate(sorted(config.api_keys.items()))
        ]
        self._anybody = Tenant(ANYBODY, 0, has_key=False)
        self._connections: dict[Hashable, Tenant] = {}
        self.num_arriving = 0
        self.num_requests = 0
        self.num_inside = 0
        self.num_body_bytes = 0

    @property
    def have_keys(self) -> bool:
        """Whether the server requires API keys."""
        return bool(self._keys)

    def of(self, authorization: bytes) -> Tenant | None:
        """Return the tenant of an `Authorization` header; None for a wrong key."""
        if not self._keys:
            return self._anybody
        kind, _, key = authorization.partition(b" ")
        digest = _digest(key.strip() if kind.lower() == b"bearer" else b"")
        match = None
        # Compare every key, each in constant time, so that timing reveals nothing about the keys.
        for key_digest, tenant in self._keys:
            if hmac.compare_digest(key_digest, digest):
                match = tenant
        return match

    @contextmanager
    def answering(self, tenant: Tenant, num_sequences: int) -> Iterator[None]:
        """Count a request's sequences as in flight. Raises `ApiError` if the tenant would have too many."""
        limit = self._config.max_answers_per_key
        # With one key, a single large request harms no other tenant. With several, it would fill the shared queue.
        if num_sequences > limit and len(self._keys) > 1:
            raise ApiError(
                f"{num_sequences} answers are asked for; a key may have {limit} under way: ask for fewer at once",
                code="too_many_answers",
            )
        if tenant.num_sequences and tenant.num_sequences + num_sequences > limit:
            raise ApiError(
                f"{tenant.num_sequences} answers of this key are under way; {num_sequences} more would be above "
                f"{limit}: try again when some have ended",
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
    def arriving(self, tenant: Tenant) -> Iterator[None]:
        """Count a request whose body is arriving. Raises `ApiError` if too many bodies are arriving, or if too many
        requests are in flight already."""
        self._check(tenant)
        if self.num_arriving >= self._config.max_requests:
            raise _full(f"the bodies of {self.num_arriving} requests have not come")
        if tenant.num_arriving >= self._config.requests_per_key:
            raise _too_many(f"the bodies of {tenant.num_arriving} requests of this key have not come")
        tenant.num_arriving += 1
        self.num_arriving += 1
        try:
            yield
        finally:
            tenant.num_arriving -= 1
            self.num_arriving -= 1

    @contextmanager
    def admitted(self, tenant: Tenant) -> Iterator[None]:
        """Count a request as in flight, from the end of its body to the end of its answer. Raises `ApiError` if there
        are too many."""
        self._check(tenant)
        tenant.num_requests += 1
        self.num_requests += 1
        try:
            yield
        finally:
            tenant.num_requests -= 1
            self.num_requests -= 1

    def hold(self, tenant: Tenant, connection: Hashable, num_open: int) -> None:
        """Count a connection for `tenant`, which has just sent a request on it. Raises `ApiError` if the tenant has
        too many. `num_open` is the number of all open connections."""
        before = self._connections.get(connection)
        if before is tenant or not tenant.has_key:
            return
        config = self._config
        # A proxy pools connections, and each counts for the tenant that used it last. So without an explicit limit,
        # the share applies only while more than half of `max_connections` are open.
        is_tight = config.max_connections_per_key is not None or 2 * num_open > config.max_connections
        if is_tight and tenant.num_connections >= config.connections_per_key:
            raise ApiError(
                f"{tenant.num_connections} connections of this key are open, as many as one may have; close some, or "
                "use them again",
                429,
                code="too_many_connections",
                retry_after_s=1,
            )
        if before is not None:
            before.num_connections -= 1
        tenant.num_connections += 1
        self._connections[connection] = tenant

    def release(self, connection: Hashable) -> None:
        """Forget a connection that has closed."""
        tenant = self._connections.pop(connection, None)
        if tenant is not None:
            tenant.num_connections -= 1

    def check_bytes(self, tenant: Tenant) -> None:
        """Raise `ApiError` if the bodies of a tenant with a key exceed its share of the bytes."""
        if tenant.has_key and tenant.num_body_bytes > self._config.body_bytes_per_key:
            raise _too_many(f"the bodies of this key's requests have {tenant.num_body_bytes} bytes")

    def check_all_bytes(self) -> None:
        """Raise `ApiError` if all bodies together exceed `max_bodies_bytes`."""
        limit = self._config.max_bodies_bytes
        if self.num_body_bytes > limit:
            raise ApiError(
                f"the bodies of all requests have more than the {limit} bytes that are held; try again later",
                503,
                code="bodies_full",
                retry_after_s=1,
            )

    def _check(self, tenant: Tenant) -> None:
        """Raise `ApiError` if the server or the tenant already has as many requests as allowed."""
        if self.num_requests >= self._config.max_requests:
            raise _full(f"{self.num_requests} requests are under way")
        if tenant.num_requests >= self._config.requests_per_key:
            raise _too_many(f"{tenant.num_requests} requests of this key are under way")


class CountedRequest:
    """A context manager that counts a request for its tenant: first as arriving, then as in flight.

    The two are counted separately, so that clients that never finish their bodies can't block those that have.
    """

    def __init__(self, tenants: Tenants, tenant: Tenant) -> None:
        self._tenants, self._tenant = tenants, tenant
        self._num_bytes, self._is_arriving = 0, True

    def __enter__(self) -> CountedRequest:
        self._stage = ExitStack()
        self._stage.enter_context(self._tenants.arriving(self._tenant))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tenant.num_body_bytes -= self._num_bytes
        self._stage.close()

    def received(self, num_bytes: int, is_whole: bool) -> None:
        """Count a part of the body. After the last part the request is in flight. Raises `ApiError` if the tenant's
        bodies have too many bytes, or if too many requests are in flight."""
        self._num_bytes += num_bytes
        self._tenant.num_body_bytes += num_bytes
        self._tenants.check_bytes(self._tenant)
        if is_whole and self._is_arriving:
            self._is_arriving = False
            self._stage.close()
            self._stage.enter_context(self._tenants.admitted(self._tenant))


def _too_many(fact: str) -> ApiError:
    return ApiError(
        f"{fact}, as many as one may have; try again when one has ended",
        429,
        code="too_many_requests",
        retry_after_s=1,
    )


def _full(fact: str) -> ApiError:
    return ApiError(
        f"{fact}, as many as the server takes; try again later", 503, code="server_full", retry_after_s=1
    )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
