"""What strange web pages send to a server that asks for no key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.server.asking import MESSAGES, ask
from support.server.running import Running, running
from weft.errors import InputError
from weft.server.errors import ApiError
from weft.server.guard import Origins, is_loopback
from weft.server.models import ServedModel
from weft.server.settings import ServerConfig

BODY = {"messages": MESSAGES, "max_tokens": 2}


@pytest.fixture(scope="module")
def named(models: dict[str, ServedModel]) -> Iterator[Running]:
    config = ServerConfig(allowed_hosts=("weft.example",), allowed_origins=("https://Good.example",))
    with running(models, config) as started:
        yield started


def asked(server: Running, headers: dict[str, str]) -> tuple[int, str]:
    """The status, and what goes with it, of a simple request, which no browser asks leave for."""
    headers = {"Content-Type": "text/plain", **headers}
    status, answer = ask(f"{server.url}/v1/chat/completions", BODY, headers=headers)
    return status, answer["error"]["message"] if status != 200 else ""


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://[", "nonsense"]
)
def test_pages_of_strange_origins_are_refused(server: Running, named: Running, origin: str) -> None:
    for one in (server, named):
        status, said = asked(one, {"Origin": origin})
        assert status == 403 and "allowed_origins" in said


def test_pages_of_its_own_and_those_allowed_are_answered(server: Running, named: Running) -> None:
    local = f"localhost:{named.port}"
    for headers in (
        {"Origin": named.url},
        {"Origin": f"http://{local}", "Host": local},
        {"Origin": "https://weft.example", "Host": "Weft.example"},
        {"Origin": "https://good.example"},
    ):
        assert asked(named, headers) == (200, "")
    assert asked(server, {"Origin": "https://good.example"})[0] == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "[evil]", "localhost@evil", "a b"]
)
def test_names_that_were_made_to_lead_here_are_refused(server: Running, host: str) -> None:
    """Also on routes that need no key: a page that reads them is a stranger's."""
    status, said = asked(server, {"Host": host, "Origin": f"http://{host}"})
    assert status == 403 and "allowed_hosts" in said
    assert ask(f"{server.url}/metrics", headers={"Host": host})[0] == 403


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.:8000", "127.0.0.1", "[::1]:80", "192.168.0.7:8000"]
)
def test_names_of_this_machine_and_addresses_are_answered(server: Running, host: str) -> None:
    assert asked(server, {"Host": host}) == (200, "")


def test_a_name_that_is_allowed_is_answered(server: Running, named: Running) -> None:
    assert asked(named, {"Host": "weft.example:8000"})[0] == 200
    assert asked(server, {"Host": "weft.example:8000"})[0] == 403


def test_with_keys_or_for_the_world_hosts_are_not_looked_at() -> None:
    strange = {b"host": b"evil.example", b"origin": b"http://other.example"}
    Origins(ServerConfig(api_keys={"a": "b"})).check(strange)
    public = Origins(ServerConfig(host="0.0.0.0"))
    public.check({b"host": b"weft.example"})
    with pytest.raises(ApiError, match="allowed_origins"):
        public.check(strange)
    Origins(ServerConfig(host="0.0.0.0", allowed_origins=("*",))).check(strange)
    image = {b"host": b"weft.example", b"sec-fetch-site": b"cross-site"}
    Origins(ServerConfig(api_keys={"a": "b"})).check(image)
    Origins(ServerConfig(host="0.0.0.0", allowed_origins=("*",))).check(image)
    Origins(ServerConfig(host="0.0.0.0", allowed_origins=("https://a",))).check(
        {**image, b"origin": b"https://a"}
    )
    for config in (
        ServerConfig(host="0.0.0.0"),
        ServerConfig(host="0.0.0.0", allowed_origins=("https://a",)),
    ):
        with pytest.raises(ApiError, match="pages of 'other origins'"):
            Origins(config).check(image)


def test_what_only_this_machine_reaches() -> None:
    for host, local in (
        ("127.0.0.2", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("a", False),
    ):
        assert is_loopback(host) == local


def test_names_that_can_not_be() -> None:
    for wrong in (("http://a",), ("a:80",), "a"):
        with pytest.raises(InputError, match="allowed_hosts"):
            ServerConfig(allowed_hosts=wrong)  # type: ignore[arg-type]
