"""Keys that are wrong, what is another tenant's, and tenants that would keep the others out."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from support.server.asking import ask
from support.server.attacks import (
    ADA,
    BO,
    COMPLETIONS,
    INNOCENT,
    MIB,
    RESPONSES,
    UNFINISHED,
    check_neighbour,
    get,
)
from support.server.running import Running, running
from support.server.sockets import connected, rest, wait_for
from weft.server.errors import ApiError
from weft.server.models import ServedModel
from weft.server.settings import ProgramSettings, ServerConfig
from weft.server.tenants import Tenants

WRONG_KEYS: dict[str, bytes] = {
    "none": b"",
    "no scheme": b"key-of-ada",
    "another scheme": b"Basic key-of-ada",
    "more than a key": b"Bearer key-of-ada key-of-bo",
    "two keys": b"Bearer key-of-ada, Bearer key-of-bo",
    "a key that goes on": b"Bearer key-of-ada2",
    "a key in capitals": b"Bearer KEY-OF-ADA",
    "a tab for a blank": b"Bearer\tkey-of-ada",
    "the name": b"Bearer ada",
    "name and key": b"Bearer ada=key-of-ada",
    "quotes": b'Bearer "key-of-ada"',
    "other letters": "Bearer key-of-åda".encode(),
}


@pytest.mark.parametrize("name", WRONG_KEYS)
def test_wrong_keys(two_keys: Running, name: str) -> None:
    for path in ("/v1/models", "/v1/../v1/models", "/v1/timeline?api_key=key-of-ada"):
        with connected(two_keys) as connection:
            connection.sendall(get(path.encode(), b"Authorization: " + WRONG_KEYS[name]))
            assert rest(connection).startswith(b"HTTP/1.1 401 ")
    check_neighbour(two_keys, BO)


def test_what_is_anothers(two_keys: Running) -> None:
    """It is as if it were not there."""
    kept = ask(f"{two_keys.url}{RESPONSES}", {"input": "x", "max_output_tokens": 1}, headers=ADA)[1]["id"]
    module = ask(f"{two_keys.url}/v1/controllers", b"\0asm\1\0\0\0", headers=ADA)[1]["module_id"]
    ask(f"{two_keys.url}/v1/controllers/tags", {"module_id": module, "tags": ["mine"]}, headers=ADA)
    attempts: list[tuple[str, str, Any]] = [
        ("GET", f"{RESPONSES}/{kept}", None),
        ("GET", f"{RESPONSES}/{kept}/input_items", None),
        ("DELETE", f"{RESPONSES}/{kept}", None),
        ("POST", RESPONSES, {"input": "x", "previous_response_id": kept}),
        ("DELETE", f"/v1/controllers/{module}", None),
        ("DELETE", "/v1/controllers/mine", None),
        ("POST", "/v1/controllers/tags", {"module_id": module, "tags": ["mine"]}),
        ("POST", COMPLETIONS, {"prompt": "x", "guide": {"wasm": module}}),
        ("POST", COMPLETIONS, {"prompt": "x", "guide": {"wasm": "mine"}}),
    ]
    for method, path, body in attempts:
        status, answer = ask(f"{two_keys.url}{path}", body, method=method, headers=BO)
        assert status == 404, (method, path, answer)
    assert ask(f"{two_keys.url}{COMPLETIONS}", {**INNOCENT, "priority": -30}, headers=BO)[0] == 400
    assert ask(f"{two_keys.url}{RESPONSES}/{kept}", headers=ADA)[0] == 200
    check_neighbour(two_keys, BO)


# -- one tenant does not shut the others out


def test_bodies_that_do_not_come(two_keys: Running) -> None:
    """They fill the share of their key alone, and not its requests that are under way."""
    tenants = two_keys.state.tenants
    with ExitStack() as opened:
        for _ in range(6):
            one = opened.enter_context(connected(two_keys))
            one.sendall(UNFINISHED + b"Content-Length: 100\r\n\r\n{")
        wait_for(lambda: tenants.num_arriving == 4)
        assert not tenants.num_requests
        check_neighbour(two_keys, BO)
        status, answer = ask(f"{two_keys.url}{COMPLETIONS}", INNOCENT, headers=ADA)
        assert status == 429 and "have not come" in answer["error"]["message"]
    wait_for(lambda: not tenants.num_arriving)
    check_neighbour(two_keys, ADA)


def test_bodies_that_are_large(two_keys: Running) -> None:
    with ExitStack() as opened:
        for _ in range(4):
            one = opened.enter_context(connected(two_keys))
            one.sendall(UNFINISHED + b"Content-Length: %d\r\n\r\n" % MIB + b" " * (MIB - 1))
        wait_for(lambda: two_keys.state.tenants.num_body_bytes == 4 * (MIB - 1))
        check_neighbour(two_keys, BO)
    wait_for(lambda: not two_keys.state.tenants.num_body_bytes)


def test_bytes_of_a_key_are_bounded(models: dict[str, ServedModel]) -> None:
    programs = ProgramSettings(max_module_bytes=MIB)
    keys = {"ada": "key-of-ada", "bo": "key-of-bo"}
    config = ServerConfig(api_keys=keys, max_bodies_bytes=4 * MIB, max_body_bytes=MIB, programs=programs)
    assert config.body_bytes_per_key == 2 * MIB
    with running(models, config) as server, ExitStack() as opened:
        for _ in range(2):
            one = opened.enter_context(connected(server))
            one.sendall(UNFINISHED + b"Content-Length: %d\r\n\r\n" % MIB + b" " * (MIB - 1))
        wait_for(lambda: server.state.tenants.num_body_bytes == 2 * (MIB - 1))
        status, answer = ask(f"{server.url}{COMPLETIONS}", {**INNOCENT, "user": "x" * 1000}, headers=ADA)
        assert status == 429 and "bytes" in answer["error"]["message"]
        check_neighbour(server, BO)


def test_connections_of_a_key(two_keys: Running) -> None:
    """Half of them may be one key's; they stay open between requests."""
    question = get(b"/v1/models", b"Authorization: Bearer key-of-ada").replace(b"Connection: close\r\n", b"")
    wait_for(lambda: not two_keys.state.connections.open)
    with ExitStack() as opened:
        answers = []
        for _ in range(10):
            one = opened.enter_context(connected(two_keys))
            one.sendall(question)
            answers.append(one.recv(100).split()[1])
        assert answers == [b"200"] * 8 + [b"429"] * 2
        check_neighbour(two_keys, BO)
    wait_for(lambda: not two_keys.state.connections.open)
    check_neighbour(two_keys, ADA)


def test_answers_of_a_key(two_keys: Running, server: Running) -> None:
    """One request of a key does not fill the queue; where there is one tenant, it may."""
    many = {"prompt": ["x"] * 600, "max_tokens": 1, "model": "plain"}
    status, answer = ask(f"{two_keys.url}{COMPLETIONS}", many, headers=ADA)
    assert status == 400 and answer["error"]["code"] == "too_many_answers"
    status, answer = ask(f"{server.url}{COMPLETIONS}", many)
    assert status == 200 and len(answer["choices"]) == 600
    tenants = Tenants(ServerConfig(api_keys={"ada": "a", "bo": "b"}))
    ada, bo = (tenants.of(b"Bearer " + key) for key in (b"a", b"b"))
    assert ada is not None and bo is not None
    with tenants.answering(ada, 512), tenants.answering(bo, 512):
        with pytest.raises(ApiError, match="512 answers of this key are under way") as caught:
            tenants.answering(ada, 1).__enter__()
        assert caught.value.status == 429
    with tenants.answering(ada, 1):
        pass


def test_connections_of_a_proxy() -> None:
    """One is of who asked on it last; and shares count where they get scarce."""
    tenants = Tenants(ServerConfig(api_keys={"ada": "a", "bo": "b"}, max_connections=8))
    ada, bo = (tenants.of(b"Bearer " + key) for key in (b"a", b"b"))
    assert ada is not None and bo is not None
    for connection in range(6):
        tenants.hold(ada, connection, 4)
    with pytest.raises(ApiError, match="6 connections of this key are open"):
        tenants.hold(ada, 6, 7)
    for connection in range(3):
        tenants.hold(bo, connection, 7)
        tenants.hold(bo, connection, 7)
    assert (ada.num_connections, bo.num_connections) == (3, 3)
    tenants.hold(ada, 6, 7)
    for connection in range(8):
        tenants.release(connection)
    assert not ada.num_connections and not bo.num_connections
    strict = Tenants(ServerConfig(api_keys={"ada": "a"}, max_connections_per_key=1))
    ada = strict.of(b"Bearer a")
    assert ada is not None
    strict.hold(ada, 0, 1)
    with pytest.raises(ApiError, match="1 connections of this key are open"):
        strict.hold(ada, 1, 2)


@pytest.mark.parametrize(
    ("keys", "given", "requests", "connections"),
    [(0, None, 512, 2048), (1, None, 512, 2048), (2, None, 256, 1024), (3, None, 170, 682), (4, None, 128, 512),
     (50, None, 128, 512), (2, 500, 500, 500)],
)  # fmt: skip
def test_shares(keys: int, given: int | None, requests: int, connections: int) -> None:
    config = ServerConfig(
        api_keys={f"{i}": f"key-{i}" for i in range(keys)},
        max_requests_per_key=given,
        max_connections_per_key=given,
    )
    assert (config.requests_per_key, config.connections_per_key) == (requests, connections)
