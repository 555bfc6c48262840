"""Keys, limits, health, metrics, and clients that leave, dawdle or send nonsense."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from openai import OpenAI

from support.server.asking import ANSWER, ENDLESS, MESSAGES, PROMPT, ask, events
from support.server.running import Running, running
from support.server.sockets import raw, wait_for
from weft.errors import InputError
from weft.server.models import ServedModel
from weft.server.settings import ServerConfig
from weft.server.state import ServerState


@pytest.fixture(scope="module")
def keyed(models: dict[str, ServedModel]) -> Iterator[Running]:
    config = ServerConfig(
        api_keys={"ada": "key-of-ada", "bo": "key-of-bo"},
        max_body_bytes=20_000,
        max_requests=4,
        max_requests_per_key=2,
        allowed_origins=("https://example.org",),
    )
    with running(models, config) as started:
        yield started


# -- keys


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer wrong", "Basic key-of-ada", "key-of-ada"])
@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/chat/completions", "/v1/messages", "/tokenize", "/v1/controllers"]
)
def test_without_a_key_nothing_is_answered(keyed: Running, header: str | None, path: str) -> None:
    headers = {"Authorization": header} if header is not None else {}
    data = None if path == "/v1/models" else {"messages": MESSAGES}
    status, answer = ask(f"{keyed.url}{path}", data, headers=headers)
    assert status == 401 and answer["error"]["code"] == "invalid_api_key"


def test_with_a_key_and_for_operators_it_answers(keyed: Running) -> None:
    with OpenAI(base_url=f"{keyed.url}/v1", api_key="key-of-bo", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tiny", "plain"]
        assert client.models.retrieve("tiny").id == "tiny"
    for path in ("/health", "/ready", "/version", "/metrics", "/"):
        assert ask(f"{keyed.url}{path}")[0] == 200


def test_without_the_page_none_of_its_files_is_there(models: dict[str, ServedModel]) -> None:
    with running(models, ServerConfig(has_page=False)) as started:
        for path in ("/", "/page/main.js", "/page/style.css"):
            assert ask(f"{started.url}{path}")[0] == 404
        assert ask(f"{started.url}/v1/timeline")[0] == 404


def test_tenants_see_their_own_alone(keyed: Running) -> None:
    ada, bo = ({"Authorization": f"Bearer key-of-{name}"} for name in ("ada", "bo"))
    body = {"input": PROMPT, "max_output_tokens": 4}
    status, response = ask(f"{keyed.url}/v1/responses", body, headers=ada)
    assert status == 200
    where = f"{keyed.url}/v1/responses/{response['id']}"
    assert ask(where, headers=ada)[0] == 200 and ask(where, headers=bo)[0] == 404
    status, uploaded = ask(f"{keyed.url}/v1/controllers", b"\0asm\1\0\0\0", headers=ada)
    assert status == 200
    assert len(ask(f"{keyed.url}/v1/controllers", headers=ada)[1]["modules"]) == 1
    assert ask(f"{keyed.url}/v1/controllers", headers=bo)[1]["modules"] == []
    guide = {"guide": {"wasm": uploaded["module_id"]}, "messages": MESSAGES}
    assert ask(f"{keyed.url}/v1/chat/completions", guide, headers=bo)[0] == 404


def test_keys_that_can_not_be() -> None:
    for keys in ({"a": "x", "b": "x"}, {"a": ""}):
        with pytest.raises(InputError), running({}, ServerConfig(api_keys=keys)):
            pass


def test_pages_of_other_origins_may_ask(keyed: Running) -> None:
    import urllib.request

    for origin, allowed in (("https://example.org", True), ("https://evil.example", False)):
        headers = {"Origin": origin, "Authorization": "Bearer key-of-ada"}
        with urllib.request.urlopen(
            urllib.request.Request(f"{keyed.url}/v1/models", headers=headers)
        ) as answer:
            assert (answer.headers.get("access-control-allow-origin") == origin) == allowed


# -- limits


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_are_bounded(keyed: Running, chunked: bool) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x" * 30_000}]}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer key-of-ada\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n" if chunked else f"Content-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", keyed.port), timeout=30) as connection:
        connection.sendall(head.encode())
        if chunked:
            for start in range(0, len(body), 10_000):
                part = body[start : start + 10_000]
                connection.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            connection.sendall(b"0\r\n\r\n")
        assert b"413" in connection.recv(65536).split(b"\r\n")[0]


def test_requests_under_way_are_bounded(keyed: Running) -> None:
    tenants = keyed.state.tenants
    with raw(keyed, ENDLESS, "key-of-ada"), raw(keyed, ENDLESS, "key-of-ada"):
        wait_for(lambda: tenants.num_requests == 2)
        status, answer = ask(
            f"{keyed.url}/v1/chat/completions",
            {"messages": MESSAGES},
            headers={"Authorization": "Bearer key-of-ada"},
        )
        assert status == 429 and answer["error"]["code"] == "too_many_requests"
        status, _ = ask(
            f"{keyed.url}/v1/chat/completions",
            {"messages": MESSAGES, "max_tokens": 2},
            headers={"Authorization": "Bearer key-of-bo"},
        )
        assert status == 200
        with raw(keyed, ENDLESS, "key-of-bo"), raw(keyed, ENDLESS, "key-of-bo"):
            wait_for(lambda: tenants.num_requests == 4)
    wait_for(lambda: tenants.num_requests == 0)


def test_who_leaves_is_cancelled(server: Running) -> None:
    served = server.state.models["tiny"]
    left = server.state.metrics.of("tiny").counters["weft:left_requests"]
    for stream in (True, False):
        with raw(server, {**ENDLESS, "stream": stream}) as connection:
            wait_for(lambda: served.client.engine.running)
            if stream:
                assert connection.recv(100)
        wait_for(lambda: not served.client.engine.running and not server.state.tenants.num_requests)
        assert served.client.responses.is_empty
    assert server.state.metrics.of("tiny").counters["weft:left_requests"] == left + 2


# -- nonsense


NONSENSE = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'{"messages": ' + b"[" * 100_000,
    b'{"messages": [{"role": 1}]}',
    b'{"messages": "x"}',
    b'{"messages": []}',
    b'{"messages": [{}]}',
    b'{"messages": [{"role": "user"}]}',
    b'{"messages": [{"role": "user", "content": 5}]}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"temperature": NaN, "messages": [{"role": "user", "content": "x"}]}',
    b'{"max_tokens": 1e400, "messages": [{"role": "user", "content": "x"}]}',
]


@pytest.mark.parametrize("body", NONSENSE)
@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
def test_nonsense_is_a_400(server: Running, body: bytes, path: str) -> None:
    status, answer = ask(f"{server.url}/v1/{path}", body, method="POST")
    assert status == 400 and answer["error"]["message"], answer


def test_routes_that_are_not_there(server: Running) -> None:
    assert ask(f"{server.url}/v1/nothing")[0] == 404
    status, answer = ask(f"{server.url}/v1/chat/completions")
    assert status == 405 and answer["error"]["type"] == "invalid_request_error"


def test_a_prompt_that_is_too_long(server: Running) -> None:
    long = {"messages": [{"role": "user", "content": "a b " * 5000}]}
    status, answer = ask(f"{server.url}/v1/chat/completions", long)
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded"


def test_neighbours_of_what_fails_do_not_notice(server: Running) -> None:
    """Good requests between bad ones, all at once."""
    good = {"messages": MESSAGES, "temperature": 0, "max_tokens": 40}
    bad = [
        {**good, "guided_json": {"type": "objct"}},
        {**good, "guided_regex": "[0-9"},
        {**good, "temperature": -1},
        {**good, "model": "nope"},
        {**good, "logit_bias": {"99999": 1}},
    ]
    asked = [good if number % 2 else bad[number // 2 % len(bad)] for number in range(40)]
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda one: ask(f"{server.url}/v1/chat/completions", one), asked))
    for one, (status, answer) in zip(asked, answers, strict=True):
        assert (status == 200) == (one is good)
        if one is good:
            assert json.loads(answer["choices"][0]["message"]["content"]) == ANSWER


def test_draining_takes_nothing_new(models: dict[str, ServedModel]) -> None:
    with running(models) as ending:
        ending.state.is_draining = True
        assert ask(f"{ending.url}/ready")[0] == 503 and ask(f"{ending.url}/health")[0] == 200
        status, answer = ask(f"{ending.url}/v1/chat/completions", {"messages": MESSAGES})
        assert status == 503 and answer["error"]["code"] == "draining"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_the_server_cuts_has_not_left(models: dict[str, ServedModel], stream: bool) -> None:
    with running(models) as ending:
        state = ending.state
        with raw(ending, {**ENDLESS, "stream": stream}) as connection:
            wait_for(lambda: state.models["tiny"].client.engine.running)
            (answering,) = state.answering
            answering.get_loop().call_soon_threadsafe(state.end_answers)
            received = b""
            while b"error" not in received:
                received += connection.recv(1 << 16) or pytest.fail(f"no error in {received!r}")
            wait_for(lambda: not state.tenants.num_requests)
        metrics = state.metrics.of("tiny")
        assert metrics.counters["weft:left_requests"] == 0
        ended = metrics.labelled["vllm:request_success"]
        assert ended == {"stop": 0, "length": 0, "abort": 1, "error": 0}


def test_wakes_lose_nothing() -> None:
    """Threads that wake one loop at once: every call is made."""
    from weft.client.following import Wakes

    async def run() -> int:
        wakes, count = Wakes.of_running_loop(), [0]

        def note() -> None:
            count[0] += 1

        def many() -> None:
            for _ in range(5000):
                wakes.wake(note)

        with ThreadPoolExecutor(4) as pool:
            await asyncio.gather(*(asyncio.get_running_loop().run_in_executor(pool, many) for _ in range(4)))
        await asyncio.sleep(0.05)
        return count[0]

    assert asyncio.run(run()) == 20_000


def test_tokens_within_the_interval_are_one_event(models: dict[str, ServedModel]) -> None:
    """Fewer events, the same text; the end comes at once. A busy machine makes events of several tokens, too."""
    asked = {
        "messages": MESSAGES,
        "max_tokens": 200,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0,
        "max_drafts": 0,
    }
    texts, numbers = [], []
    for interval in (0, 60_000):
        with running(models, ServerConfig(stream_interval_ms=interval)) as started:
            began = time.monotonic()
            chunks = events(ask(f"{started.url}/v1/chat/completions", asked)[1])
            assert time.monotonic() - began < 50  # the end does not wait for the interval
        texts.append("".join(one["choices"][0]["delta"].get("content", "") for one in chunks))
        numbers.append(len(chunks))
        assert sum(len(one["choices"][0].get("token_origins", ())) for one in chunks) == 200
    assert texts[0] == texts[1] and numbers[0] > 2 * numbers[1]


@pytest.mark.parametrize(("under_way", "pause_ms"), [(0, 20), (16, 20), (24, 30), (80, 100), (400, 100)])
def test_tokens_gather_for_longer_while_many_are_under_way(under_way: int, pause_ms: int) -> None:
    state = ServerState(ServerConfig(stream_interval_ms=20), {})
    anybody = state.tenants.of(b"")
    assert anybody is not None
    try:
        with ExitStack() as admitted:
            for _ in range(under_way):
                admitted.enter_context(state.tenants.admitted(anybody))
            assert state.pause_s() == pytest.approx(pause_ms / 1000)
        assert state.pause_s() == pytest.approx(0.02)
    finally:
        state.close()


def test_a_body_that_trickles_is_refused(models: dict[str, ServedModel]) -> None:
    with running(models, ServerConfig(max_body_s=0.5)) as started:
        with socket.create_connection(("127.0.0.1", started.port), timeout=30) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{"
            )
            assert b"408" in connection.recv(65536).split(b"\r\n")[0]
        assert ask(f"{started.url}/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2})[0] == 200


def test_a_key_may_have_any_name(models: dict[str, ServedModel]) -> None:
    """Also that of everybody where there are no keys: what one reads, others with keys do not find."""
    config = ServerConfig(api_keys={"anybody": "a", "zoe": "z"})
    with running(models, config) as server:
        body = {"prompt": "Text: a prefix that is long enough for pages of its own. " * 3, "max_tokens": 1}

        def cached(key: str, salt: str | None) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            answer = ask(f"{server.url}/v1/completions", {**body, "cache_salt": salt}, headers=headers)[1]
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert cached("z", None) < 5 and cached("z", None) > 20
        assert all(cached("a", salt) < 5 for salt in ("1", "0"))


@pytest.mark.parametrize("key", ["", " ", "secret\n", " secret"])
def test_a_key_that_no_header_carries_is_refused(key: str) -> None:
    with pytest.raises(InputError, match="blanks around it"):
        ServerConfig(api_keys={"ada": key})
