"""Who asks: API keys by name, and how much each may have under way."""

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
"""What the tenant is called where no key is asked for."""


@dataclass(eq=False)
class Tenant:
    """Somebody with a key, or everybody where no key is asked for. `number` is the engine's client: clients take
    turns."""

    name: str
    number: int
    has_key: bool = True
    num_coming: int = 0
    num_requests: int = 0
    num_sequences: int = 0
    num_body_bytes: int = 0
    num_connections: int = 0

    def salted(self, salt: str | None) -> str | None:
        """The salt of a request's prefixes: tenants with keys do not find each other's, whose reuse could be timed."""
        if not self.has_key:
            return salt
        return f"{self.number}" if salt is None else f"{self.number}/{salt}"


class Tenants:
    """The tenants of a server; how many requests all have under way, how many more have a body that comes
    (`num_coming`), and how many are being read or answered (`num_inside`). Used on the event loop alone."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._keys = [
            (_digest(key.encode()), Tenant(name, number))
            for number, (name, key) in enumerate(sorted(config.api_keys.items()))
        ]
        self._anybody = Tenant(ANYBODY, 0, has_key=False)
        self._connections: dict[Hashable, Tenant] = {}
        self.num_coming = 0
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
        """So many answers under way. Raises `ApiError` where there are others and all are too many; and, of several
        tenants, for one request of too many, which would fill the queue that the others wait in, too."""
        most = self._config.max_answers_per_key
        if num_sequences > most and len(self._keys) > 1:
            raise ApiError(
                f"{num_sequences} answers are asked for; a key may have {most} under way: ask for fewer at once",
                code="too_many_answers",
            )
        if tenant.num_sequences and tenant.num_sequences + num_sequences > most:
            raise ApiError(
                f"{tenant.num_sequences} answers of this key are under way; {num_sequences} more would be above "
                f"{most}: try again when some have ended",
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
    def coming(self, tenant: Tenant) -> Iterator[None]:
        """A request whose body comes. Raises `ApiError` where there are too many, or where it would not be admitted."""
        self._check(tenant)
        most_each, most = self._config.requests_per_key, self._config.max_requests
        if self.num_coming >= most:
            raise _full(f"the bodies of {self.num_coming} requests have not come")
        if tenant.num_coming >= most_each:
            raise _too_many(f"the bodies of {tenant.num_coming} requests of this key have not come")
        tenant.num_coming += 1
        self.num_coming += 1
        try:
            yield
        finally:
            tenant.num_coming -= 1
            self.num_coming -= 1

    @contextmanager
    def admitted(self, tenant: Tenant) -> Iterator[None]:
        """A request under way, from when its body came to the end of its answer. Raises `ApiError` where there are too
        many."""
        self._check(tenant)
        tenant.num_requests += 1
        self.num_requests += 1
        try:
            yield
        finally:
            tenant.num_requests -= 1
            self.num_requests -= 1

    def hold(self, tenant: Tenant, connection: Hashable, num_open: int) -> None:
        """A connection is the tenant's, who asks on it, until another does or it is let go; `num_open` are open in all.
        Raises `ApiError` where the tenant has too many. A share counts where half of all are open: those of a proxy's
        pool are of whoever asked last."""
        before = self._connections.get(connection)
        if before is tenant or not tenant.has_key:
            return
        config = self._config
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

    def let_go(self, connection: Hashable) -> None:
        """A connection has closed."""
        tenant = self._connections.pop(connection, None)
        if tenant is not None:
            tenant.num_connections -= 1

    def check_bytes(self, tenant: Tenant) -> None:
        """Raise `ApiError` where the bodies of a tenant with a key have more bytes than its share."""
        if tenant.has_key and tenant.num_body_bytes > self._config.body_bytes_per_key:
            raise _too_many(f"the bodies of this key's requests have {tenant.num_body_bytes} bytes")

    def _check(self, tenant: Tenant) -> None:
        """Raise `ApiError` where no further request is admitted."""
        most_each, most = self._config.requests_per_key, self._config.max_requests
        if self.num_requests >= most:
            raise _full(f"{self.num_requests} requests are under way")
        if tenant.num_requests >= most_each:
            raise _too_many(f"{tenant.num_requests} requests of this key are under way")


class Admission:
    """A request of a tenant's, within `with`: its body comes first, and then it is under way. The two are counted
    apart, so that bodies that never come keep out nobody whose body has come."""

    def __init__(self, tenants: Tenants, tenant: Tenant) -> None:
        self._tenants, self._tenant = tenants, tenant
        self._num_bytes, self._is_coming = 0, True

    def __enter__(self) -> Admission:
        self._stage = ExitStack()
        self._stage.enter_context(self._tenants.coming(self._tenant))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tenant.num_body_bytes -= self._num_bytes
        self._stage.close()

    def received(self, num_bytes: int, is_whole: bool) -> None:
        """A part of its body came. Raises `ApiError` where the tenant's have too many bytes, and, where this was the
        last part, where too many are under way."""
        self._num_bytes += num_bytes
        self._tenant.num_body_bytes += num_bytes
        self._tenants.check_bytes(self._tenant)
        if is_whole and self._is_coming:
            self._is_coming = False
            self._stage.close()
            self._stage.enter_context(self._tenants.admitted(self._tenant))


def _too_many(what: str) -> ApiError:
    return ApiError(
        f"{what}, as many as one may have; try again when one has ended",
        429,
        code="too_many_requests",
        retry_after_s=1,
    )


def _full(what: str) -> ApiError:
    return ApiError(
        f"{what}, as many as the server takes; try again later", 503, code="server_full", retry_after_s=1
    )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
