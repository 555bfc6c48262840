"""How a server is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.errors import InputError
from weft.server.programs import ProgramLimits

LEAST_SHARE = 4
"""A key has one part in so many at least, however many keys there are."""


@dataclass(frozen=True)
class ServerConfig:
    """How a server is run.

    It listens at `host` and `port`. `api_keys` are keys by the names of who has them; without any nobody is asked for
    one. The line and headers of a request may have `max_head_bytes`, and take `max_head_s` seconds to come; a body
    `max_body_bytes` and `max_body_s`, and all that are held `max_bodies_bytes`. A body of JSON has at most
    `max_body_entries`, a quarter of which may be lists, objects, names and texts.

    At most `max_requests` are under way, as many more have a body that comes, and `max_connections` are open. Of these
    a key may have `max_requests_per_key` and `max_connections_per_key`; None is its share: as much as each other key,
    but a quarter at least. The bytes of bodies are shared likewise. It may have `max_answers_per_key` answers under way
    (of `n` and of several prompts; where there is one key, or none, a single request may have more).

    Tokens of a stream that come within `stream_interval_ms` are one event; above 16 requests under way the time grows
    with their number, to five times. A client that takes nothing for `slow_reader_s` seconds loses its connection. Told
    to end, the server takes nothing new, and waits `drain_s` seconds for what is under way.

    `allow_priority` lets requests say their priority, which goes before the turns of tenants (None: where nobody has a
    key). `allowed_origins` are web pages' that may ask ("*": all), and `allowed_hosts` are names that a server without
    keys may be called by where it listens on this machine alone (addresses always may). `has_page` serves the
    playground at /. /v1/responses keeps the last `max_kept_responses`, of `max_kept_bytes` together. `programs` bounds
    what clients upload.
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
    programs: ProgramLimits = field(default_factory=ProgramLimits)

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
        """Requests of one key that are under way, and as many whose body comes."""
        return self._of_key(self.max_requests, self.max_requests_per_key)

    @property
    def connections_per_key(self) -> int:
        """Connections on which one key asks."""
        return self._of_key(self.max_connections, self.max_connections_per_key)

    @property
    def body_bytes_per_key(self) -> int:
        """Bytes of all bodies of one key, of which any single one has room."""
        longest = max(self.max_body_bytes, self.programs.max_module_bytes)
        return max(self._of_key(self.max_bodies_bytes, None), longest)

    def _of_key(self, most: int, given: int | None) -> int:
        """What one key may have of `most`, unless that is given. Up to four keys leave each other room whatever they
        do."""
        if given is not None:
            return given
        return max(most // max(min(len(self.api_keys), LEAST_SHARE), 1), 1)
