"""Heads, and forms of bodies, that are made to break the server, each with the answer that it must get; and after each
a neighbour who asks the same as before and gets the same."""

from __future__ import annotations

import json
import re
import select
import time
from collections.abc import Iterator

import pytest

from support.server.asking import ask
from support.server.attacks import BO, COMPLETIONS, MIB, UNFINISHED, check_neighbour, get
from support.server.running import Running, running
from support.server.sockets import connected, rest, wait_for
from weft.server.models import ServedModel
from weft.server.settings import ServerConfig

CHUNKED = b"Transfer-Encoding: chunked"


def post(body: bytes = b'{"prompt": "x", "max_tokens": 1}', *lines: bytes, path: str = COMPLETIONS) -> bytes:
    """A request whose head has these lines, too. Its length is told where no line tells it."""
    told = any(b"content-length" in line.lower() or b"transfer-encoding" in line.lower() for line in lines)
    own = () if told else (b"Content-Length: %d" % len(body),)
    head = (b"POST %s HTTP/1.1" % path.encode(), b"Host: 127.0.0.1", b"Connection: close", *own, *lines)
    return b"\r\n".join(head) + b"\r\n\r\n" + body


@pytest.fixture(scope="module")
def door(models: dict[str, ServedModel]) -> Iterator[Running]:
    """A server that asks for no key."""
    with running(models, ServerConfig(max_body_s=2.0)) as started:
        yield started


HEADS: dict[str, tuple[bytes, int]] = {
    # lengths, and how a body is told from what follows it
    "two lengths": (post(b"{}", b"Content-Length: 2", b"Content-Length: 2"), 400),
    "two other lengths": (post(b"{}", b"Content-Length: 2", b"Content-Length: 1"), 400),
    "a list of lengths": (post(b"{}", b"Content-Length: 2, 2"), 400),
    "a length with a sign": (post(b"{}", b"Content-Length: +2"), 400),
    "a length below zero": (post(b"{}", b"Content-Length: -2"), 400),
    "a length in hex": (post(b"{}", b"Content-Length: 0x2"), 400),
    "a length of 30 digits": (post(b"{}", b"Content-Length: " + b"9" * 30), 400),
    "a length that is empty": (post(b"{}", b"Content-Length:"), 400),
    "a length of 10 GB": (post(b"{}", b"Content-Length: 10000000000"), 413),
    "a length and chunks": (post(b"0\r\n\r\n", b"Content-Length: 5", CHUNKED), 400),
    "chunks and a length": (post(b"0\r\n\r\n", CHUNKED, b"Content-Length: 5"), 400),
    "identity": (post(b"{}", b"Transfer-Encoding: identity"), 400),
    "chunked, then identity": (post(b"0\r\n\r\n", b"Transfer-Encoding: chunked, identity"), 400),
    "an encoding that is none": (post(b"0\r\n\r\n", b"Transfer-Encoding: xchunked"), 400),
    "gzip as an encoding": (post(b"0\r\n\r\n", b"Transfer-Encoding: gzip"), 400),
    "a chunk of size zz": (post(b"zz\r\n{}\r\n0\r\n\r\n", CHUNKED), 400),
    "a chunk of size -2": (post(b"-2\r\n{}\r\n0\r\n\r\n", CHUNKED), 400),
    "a chunk of size 0x2": (post(b"0x2\r\n{}\r\n0\r\n\r\n", CHUNKED), 400),
    "a chunk of 17 digits": (post(b"f" * 17 + b"\r\n{}\r\n", CHUNKED), 400),
    "a chunk without a size": (post(b"\r\n{}\r\n0\r\n\r\n", CHUNKED), 400),
    "a chunk longer than its size": (post(b"1\r\n{}\r\n0\r\n\r\n", CHUNKED), 400),
    "a bad chunk after a good one": (post(b"2\r\n{ \r\nzz\r\n", CHUNKED), 400),
    "chunks of no JSON": (post(b"2\r\n{]\r\n0\r\n\r\n", CHUNKED), 400),
    # lines of the head
    "no colon": (get(b"/", b"Nonsense"), 400),
    "a blank before the colon": (get(b"/", b"Host : 127.0.0.1"), 400),
    "a folded line": (get(b"/", b"A: b\r\n c"), 400),
    "a NUL": (get(b"/", b"A: \0"), 400),
    "a bare carriage return": (get(b"/", b"A: b\rB: c"), 400),
    "a name that is empty": (get(b"/", b": x"), 400),
    "a name in brackets": (get(b"/", b"[A]: x"), 400),
    "another version": (get(b"/", version=b"HTTP/3.0"), 400),
    "no version": (b"GET /\r\n\r\n", 400),
    "a method in small letters": (get(b"/").replace(b"GET", b"get", 1), 400),
    "a method that is none": (get(b"/").replace(b"GET", b"FOO", 1), 400),
    "CONNECT": (b"CONNECT evil.example:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
    "TRACE": (get(b"/v1/models").replace(b"GET", b"TRACE", 1), 405),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), 400),
    "letters beyond ASCII in the path": (get("/v1/mødels".encode()), 400),
    "a path out of the root": (get(b"/../../etc/passwd"), 404),
    "a path with NUL": (get(b"/v1/models%00"), 404),
    "a path of half a character": (get(b"/v1/models/%ED%A0%80"), 404),
    "a model of half a character": (get(b"/v1/timeline?model=%ED%A0%80"), 404),
    "a long path": (get(b"/" + b"x" * 70_000), 431),
    "a long header": (get(b"/", b"A: " + b"x" * 70_000), 431),
    "many headers": (get(b"/", *[b"A: x"] * 20_000), 431),
    # headers of which there is one
    "two keys": (get(b"/v1/models", b"Authorization: Bearer a", b"Authorization: Bearer b"), 400),
    "two keys of Anthropic's clients": (get(b"/v1/models", b"X-Api-Key: a", b"X-Api-Key: b"), 400),
    "two hosts": (get(b"/v1/models", b"Host: 127.0.0.1", b"Host: evil.example"), 400),
    "two hosts that agree": (get(b"/v1/models", b"Host: 127.0.0.1", b"Host: 127.0.0.1"), 400),
    "two origins": (post(b"{}", b"Origin: http://127.0.0.1", b"Origin: https://evil.example"), 400),
    "two types": (post(b"{}", b"Content-Type: text/plain", b"Content-Type: application/json"), 400),
    # what a client expects
    "Expect: foo": (post(b"{}", b"Expect: foo"), 417),
    "Expect twice": (post(b"{}", b"Expect: 100-continue", b"Expect: foo"), 400),
    "an upgrade of a body": (post(b"{}", b"Connection: Upgrade", b"Upgrade: h2c"), 400),
    "an upgrade of chunks": (
        post(b"2\r\n{}\r\n0\r\n\r\n", CHUNKED, b"Connection: Upgrade", b"Upgrade: x"),
        400,
    ),
    "a websocket": (get(b"/v1/models", b"Connection: Upgrade", b"Upgrade: websocket"), 200),
    # pages of strangers
    "an empty origin": (post(b"{}", b"Origin:"), 403),
    "the origin null": (post(b"{}", b"Origin: null"), 403),
    "an origin with the host in it": (post(b"{}", b"Origin: http://127.0.0.1.evil.example"), 403),
    "the origin of another port": (post(b"{}", b"Origin: http://127.0.0.1:1"), 403),
    "a host that leads here": (get(b"/v1/models", b"Host: evil.example"), 403),
    "a host with a user": (get(b"/v1/models", b"Host: 127.0.0.1@evil.example"), 403),
    "an image of a strange page": (get(b"/v1/timeline?ms=500", b"Sec-Fetch-Site: cross-site"), 403),
    "an image of another port's page": (get(b"/v1/models", b"Sec-Fetch-Site: same-site"), 403),
    "metrics for a strange page": (get(b"/metrics", b"Sec-Fetch-Site: cross-site"), 403),
    "a form of a strange page": (post(b"{}", b"Sec-Fetch-Site: cross-site"), 403),
    "two sites": (get(b"/v1/models", b"Sec-Fetch-Site: none", b"Sec-Fetch-Site: cross-site"), 400),
    "a link to the page": (get(b"/", b"Sec-Fetch-Site: cross-site"), 200),
    "the page's own request": (get(b"/v1/models", b"Sec-Fetch-Site: same-origin"), 200),
    "an address that was typed": (get(b"/v1/models", b"Sec-Fetch-Site: none"), 200),
    "the page's own question": (
        post(
            b'{"prompt": "x", "max_tokens": 1}', b"Origin: http://127.0.0.1", b"Sec-Fetch-Site: same-origin"
        ),
        200,
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads(door: Running, name: str) -> None:
    sent, status = HEADS[name]
    with connected(door) as connection:
        connection.sendall(sent)
        connection.settimeout(15)
        answer = rest(connection)
    assert answer.split(b" ")[:2] == [b"HTTP/1.1", b"%d" % status], answer[:300]
    assert len(re.findall(rb"HTTP/1\.1 [1-5]", answer)) == 1
    if status >= 400:
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
    tenants = door.state.tenants
    wait_for(lambda: not door.state.connections.open and not tenants.num_inside and not tenants.num_arriving)
    check_neighbour(door)


# -- bodies that go on, or do not


def test_a_body_that_breaks_while_others_wait(door: Running) -> None:
    """Who sends ahead loses the connection: an error would be read as the answer to what came before."""
    with connected(door) as connection:
        connection.sendall(post().replace(b"Connection: close\r\n", b"") + post(b"zz\r\n", CHUNKED))
        assert rest(connection).count(b" 400 ") == 0
    wait_for(lambda: not door.state.tenants.num_inside)
    check_neighbour(door)


@pytest.mark.parametrize("size", [MIB + 1, 3 * MIB])
@pytest.mark.parametrize(("key", "status"), [("key-of-ada", 413), ("wrong", 401)])
def test_an_answer_before_the_body_has_come_is_read(
    two_keys: Running, key: str, status: int, size: int
) -> None:
    for _ in range(5):
        headers = {"Authorization": f"Bearer {key}"}
        found, answer = ask(f"{two_keys.url}{COMPLETIONS}", b"x" * size, headers=headers)
        assert found == status and answer["error"]["message"]
    check_neighbour(two_keys, BO)


def test_who_still_sends_reads_the_answer(two_keys: Running) -> None:
    """What comes after it is read and dropped for a while: the system would answer it with a reset."""
    for sent in (
        UNFINISHED + b"Content-Length: 10000000\r\n\r\n",
        post(b"zz\r\n", CHUNKED),
        b"nonsense\r\n\r\n",
    ):
        with connected(two_keys) as connection:
            connection.sendall(sent)
            select.select([connection], [], [], 60)
            for _ in range(3):  # within the second in which it is dropped
                connection.sendall(b"x" * 50_000)
                time.sleep(0.01)
            assert rest(connection).startswith(b"HTTP/1.1 4")


def test_who_sends_on_and_on_after_a_refusal_is_cut(door: Running) -> None:
    with connected(door) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.sendall(bytes(1000 * MIB))
    check_neighbour(door)


# -- the page


def test_no_page_frames_the_playground(door: Running) -> None:
    with connected(door) as connection:
        connection.sendall(get(b"/"))
        head = rest(connection).partition(b"\r\n\r\n")[0]
    (policy,) = re.findall(rb"content-security-policy: (.*)", head)
    for part in (
        b"default-src 'none'",
        b"connect-src 'self'",
        b"frame-ancestors 'none'",
        b"form-action 'none'",
    ):
        assert part in policy
    assert b"x-frame-options: DENY" in head
