"""Which web pages may ask a server that asks for no key: a page of anybody's can send requests to 127.0.0.1."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from weft.server.errors import ApiError
from weft.server.settings import ServerConfig

PAGE = "/"
FROM, STRANGE = b"sec-fetch-site", (b"cross-site", b"same-site")
"""What a browser says of the page that a request is for, and of which pages nothing is taken. Another port of this
machine is the same site."""
HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::\d*)?")


class Origins:
    """Refuses requests of strange pages (by `Origin`, or `Sec-Fetch-Site` where there is none), and of pages whose name
    was made to lead here (by `Host`)."""

    def __init__(self, config: ServerConfig) -> None:
        self._is_open = bool(config.api_keys)
        self._allowed = {origin.lower() for origin in config.allowed_origins}
        self._hosts = {config.host.lower(), "localhost", *(name.lower() for name in config.allowed_hosts)}
        self._checks_hosts = is_loopback(config.host)

    def check(self, headers: Mapping[bytes, bytes], path: str = "/v1") -> None:
        """Raise `ApiError` for a request that a strange page may have sent. Any page may lead to the server's own."""
        if self._is_open:
            return
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._checks_hosts and host and not self._is_known(host):
            raise ApiError(
                f"this server has no API key and takes no requests for {host[:200]!r}, which a strange web page may "
                "have made lead here; give the name in allowed_hosts (--allow-host), or use keys",
                403,
                code="host_not_allowed",
            )
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if b"origin" in headers:
            is_strange = not self._allowed & {"*", origin} and not _is_of(origin, host)
        else:  # an image or a script of a page's: browsers say so to addresses of this machine, and by https
            is_strange = path != PAGE and "*" not in self._allowed and headers.get(FROM, b"") in STRANGE
        if is_strange:
            raise ApiError(
                f"this server has no API key and takes no requests of pages of {origin[:200] or 'other origins'!r}; "
                "give it in allowed_origins (--allow-origin), or use keys",
                403,
                code="origin_not_allowed",
            )

    def _is_known(self, host: str) -> bool:
        """Whether a `Host` is a name of the server's, or an address: names are what others can make lead here."""
        found = HOST.fullmatch(host)
        name = found[1].rstrip(".") if found is not None else ""
        return name in self._hosts or _address(name) is not None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens at `host`."""
    address = _address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def _is_of(origin: str, host: str) -> bool:
    """Whether a page is the server's own."""
    try:
        return bool(host) and urlsplit(origin).netloc == host
    except ValueError:
        return False
