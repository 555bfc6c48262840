"""Settings of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.errors import InputError

MIN_SHARE = 4
"""Each key gets at least 1 / `MIN_SHARE` of a limit, however many keys there are."""


@dataclass(frozen=True)
class ProgramSettings:
    """Settings of uploaded programs. A tenant's limits: the number of modules, the bytes of each module and of all
    together, and the number of tags. Programs run as untrusted guides unless `trusted` is set."""

    max_modules: int = 64
    max_module_bytes: int = 16 << 20
    max_bytes: int = 64 << 20
    max_tags: int = 256
    trusted: bool = False

    def __post_init__(self) -> None:
        if self.max_module_bytes <= 0:
            raise InputError(f"max_module_bytes is {self.max_module_bytes}; it must be above 0")
        for name in ("max_modules", "max_bytes", "max_tags"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must be 0 or more")


@dataclass(frozen=True)
class ServerConfig:
    """Settings of a server.

    Address and keys: the server listens at `host` and `port` (0: any free port). `api_keys` maps tenant names to
    their keys. Without keys anybody may send requests.

    Reading: a request's head (request line and headers) may have `max_head_bytes` and take `max_head_s` seconds. A
    body may have `max_body_bytes` and take `max_body_s` seconds. All bodies together may hold `max_bodies_bytes`. A
    JSON body may have `max_body_entries` entries, and at most a quarter of those may be lists, objects, names and
    strings.

    Load: at most `max_requests` requests are in flight. The same number of further requests may be sending their body.
    At most `max_connections` connections are open. `max_requests_per_key` and `max_connections_per_key` limit a single
    key. None gives each key an equal share, but at least a quarter. Body bytes are shared the same way. A key may have
    `max_answers_per_key` sequences in flight: `n` for each prompt of each request. On a server with at most one key, a
    single request may exceed that.

    Streams: tokens that arrive within `stream_interval_ms` share an event. Above 16 requests in flight this interval
    grows with their number, up to five times its value. A client that reads nothing for `slow_reader_s` seconds is
    disconnected. On shutdown the server refuses new requests and waits up to `drain_s` seconds for those in flight.

    Permissions: `allow_priority` lets requests set their priority, which overrides the tenants' fair shares (None:
    only on a server without keys). `allowed_origins` lists the origins of web pages that may send requests ("*":
    all). `allowed_hosts` lists additional `Host` names for a server without keys that listens only on loopback; IP
    addresses are always allowed. `has_page` serves the playground at /.

    Stored data: /v1/responses keeps up to `max_kept_responses` responses per tenant, with up to `max_kept_bytes` in
    total. `programs` limits uploaded programs.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: Mapping[str, str] = field(default_factory=dict)
    max_head_bytes: int = 64 << 10
    max_head_s: float = 10.0
    max_body_bytes: int = 4 << 20
    max_body_s: float = 30.0
    max_body_entries: int = 1 << 18
    max_bodies_bytes: int = 256 << 20
    max_requests: int = 512
    max_requests_per_key: int | None = None
    max_answers_per_key: int = 512
    max_connections: int = 2048
    max_connections_per_key: int | None = None
    stream_interval_ms: float = 20.0
    slow_reader_s: float = 60.0
    drain_s: float = 30.0
    allow_priority: bool | None = None
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    has_page: bool = True
    max_kept_responses: int = 1000
    max_kept_bytes: int = 64 << 20
    programs: ProgramSettings = field(default_factory=ProgramSettings)

    def __post_init__(self) -> None:
        keys = [*self.api_keys.values()]
        if len(set(keys)) < len(keys):
            raise InputError("two API keys are the same; give each name a key of its own")
        if any(key != key.strip() or not key for key in keys):
            raise InputError("an API key is empty, or has blanks around it, which a header can't carry")
        for name in (
            "max_head_bytes",
            "max_head_s",
            "max_body_bytes",
            "max_body_s",
            "max_body_entries",
            "max_bodies_bytes",
            "max_requests",
            "max_requests_per_key",
            "max_answers_per_key",
            "max_connections",
            "max_connections_per_key",
            "slow_reader_s",
        ):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InputError(f"{name} is {value}; it must be above 0")
        for name in ("allowed_origins", "allowed_hosts"):
            if isinstance(getattr(self, name), str):
                raise InputError(f"{name} is a text; it must be a list of them")
        for host in self.allowed_hosts:
            if "/" in host or ":" in host:
                raise InputError(f"allowed_hosts has {host!r}; give names, without a scheme or a port")
        if not 0 <= self.port < 65536:
            raise InputError(f"port is {self.port}; it must be 0 (any that is free) to 65535")
        for name in ("drain_s", "stream_interval_ms", "max_kept_responses", "max_kept_bytes"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must be 0 or more")

    @property
    def requests_per_key(self) -> int:
        """Requests that one key may have in flight. The same number of further requests may be sending their body."""
        return self._share(self.max_requests, self.max_requests_per_key)

    @property
    def connections_per_key(self) -> int:
        """Connections that one key may hold."""
        return self._share(self.max_connections, self.max_connections_per_key)

    @property
    def body_bytes_per_key(self) -> int:
        """Body bytes that one key may hold. This is never less than one body of the maximum size."""
        longest = max(self.max_body_bytes, self.programs.max_module_bytes)
        return max(self._share(self.max_bodies_bytes, None), longest)

    def _share(self, total: int, explicit: int | None) -> int:
        """Return one key's part of `total`: `explicit` if set, else an equal share, but at least a quarter. With up
        to four keys the shares do not overlap, so no key can use another key's share."""
        if explicit is not None:
            return explicit
        return max(total // max(min(len(self.api_keys), MIN_SHARE), 1), 1)
