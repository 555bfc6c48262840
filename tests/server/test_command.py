"""`weft serve` as a process: its settings, its end."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.server.asking import ANSWER, MESSAGES, ask
from support.server.sockets import rest, wait_for
from weft.errors import InputError
from weft.server.config_file import read_config
from weft.server.models import ServedModelConfig, build
from weft.server.run import REPEAT_S, check_address
from weft.server.settings import ServerConfig

CONFIG = """
[server]
api_keys = {ada = "a-secret"}
max_requests_per_key = 4
allowed_origins = ["https://example.org"]
[server.programs]
max_modules = 2

[[models]]
name = "drafting"
[models.speculation]
drafter = "eagle3"
num_draft_tokens = {"1" = 4, "8" = 2}
forced = true
[models.engine]
max_batch = 4
[models.guides.person]
json_schema = "person.json"
[models.guides.digits]
regex = "[0-9]{2}"

[[models]]
path = "weft-tiny"
name = "plain"
tool_style = "llama"
thinking = ["<think>", "</think>"]

[programs]
year = "year.wasm"
"""


def test_a_configuration_is_read(tmp_path: Path) -> None:
    (tmp_path / "person.json").write_text('{"type": "object"}')
    (tmp_path / "server.toml").write_text(CONFIG)
    read = read_config(tmp_path / "server.toml")
    assert read.server.api_keys == {"ada": "a-secret"} and read.server.programs.max_modules == 2
    drafting, plain = read.models
    assert (
        drafting.speculation.drafters == ("forced", "eagle3") and drafting.speculation.max_draft_tokens == 4
    )
    assert (
        drafting.engine.max_batch == 4 and drafting.engine.untrusted_guides and drafting.engine.shares_slots
    )
    kinds = {name: guide.kind for name, guide in drafting.handles.items()}
    assert kinds == {"person": "json_schema", "digits": "regex"}
    assert (plain.tool_style, plain.thinking) == ("llama", ("<think>", "</think>"))
    assert read.programs == {"year": tmp_path / "year.wasm"}


DRAFTING = "[[models]]\n[models.speculation]\ndrafter = 'eagle3'\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[server\n", "is no TOML"),
        ("[http]\n", "there is no setting http; there is server, models, programs"),
        ("[serve]\n", r"there is no setting serve; did you mean server\?"),
        ("[server]\nprt = 1\n", "server.prt"),
        ("[server]\nport = 99999\n", "port is 99999"),
        ("[[models]]\nnme = 'x'\n", r"models\[0\].nme"),
        (
            "[[models]]\n[models.engine]\nmax_bach = 1\n",
            r"models\[0\].engine.max_bach; did you mean max_batch\?",
        ),
        ("[[models]]\n[models.engine]\nmax_model_len = 1\n", "max_model_len; it is called max_seq_len"),
        ("[[models]]\n[models.speculation]\ndrafter = 'eagel3'\n", r"'eagel3'; did you mean 'eagle3'\?"),
        ("[server]\nprograms = 3\n", "server.programs is no table"),
        ("[[models]]\n[models.guides.a]\nregx = 'x'\n", r"models\[0\].guides.a"),
        ("models = 3\n", "models"),
        ("programs = 3\n", "programs is no table"),
        ("[server]\nport = '80'\n", "server.port must be an integer, not '80'"),
        ("[server]\nhas_page = 'false'\n", "server.has_page must be true or false, not 'false'"),
        ("[server]\nmax_head_s = nan\n", "server.max_head_s is nan"),
        ("[server]\nmax_kept_bytes = -1\n", "max_kept_bytes is -1"),
        ("[server]\napi_keys = 'abc'\n", "server.api_keys must be an object, not 'abc'"),
        ("[server]\napi_keys = {ada = 5}\n", "server.api_keys.ada must be a text, not 5"),
        ("[server]\nallowed_origins = 'https://a'\n", "allowed_origins must be a list, not 'https://a'"),
        (
            "[server.programs]\ntrusted = 'false'\n",
            "server.programs.trusted must be true or false, not 'false'",
        ),
        ("[server.programs]\nmax_tags = -1\n", "programs.max_tags is -1"),
        ("[[models]]\nmax_queue_size = '5'\n", r"models\[0\].max_queue_size must be an integer, not '5'"),
        (
            "[[models]]\ngeneration_config = 'no'\n",
            r"models\[0\].generation_config must be 'auto' or 'weft', not 'no'",
        ),
        (
            "[[models]]\n[models.engine]\nmax_batch = '5'\n",
            r"models\[0\].engine.max_batch must be an integer, not '5'",
        ),
        (
            "[[models]]\n[models.speculation]\nforced = 'false'\n",
            "forced is 'false'; it must be true or false",
        ),
        ("[[models]]\npath = 5\n", r"models\[0\].path must be a text, not 5"),
        ("[[models]]\nthinking = ['<think>', 5]\n", r"models\[0\].thinking must be a text, not 5"),
        (DRAFTING + "path = 3\n", "speculation.path must be a text"),
        (DRAFTING + "num_draft_tokens = {x = 3}\n", "has 'x', which is no batch size"),
        (f"[[models]]\n[models.guides]\na = {{json_schema = '{'x' * 300}'}}\n", "not valid JSON"),
        ("[[models]]\n[models.guides]\na = {wasm = 'a.wasm', regex = 'x'}\n", "must have one of"),
    ],
)
def test_what_is_wrong_with_one_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "server.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=said) as caught:
        read_config(path)
    assert str(path) in str(caught.value)


@pytest.mark.slow
def test_a_guide_that_does_not_compile_is_named(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text("[[models]]\nname = 'tiny'\n[models.guides]\nyear = {regex = '[0-9'}\n")
    (config,) = read_config(path).models
    model = build(config)
    try:
        with pytest.raises(InputError) as caught:
            model.warm_up()
    finally:
        model.close()
    assert str(caught.value).startswith(f"{path}: models[0] (tiny): guides.year: ")
    with pytest.raises(InputError, match=r"^weft-tiny: tool_style is 'x'"):
        build(ServedModelConfig(tool_style="x"))
    with pytest.raises(InputError, match=r"^weft-tiny: thinking has 1 marker; it must have two, or none"):
        build(ServedModelConfig(thinking=("<think>",)))
    path.write_text("[[models]]\nhandles = {}\n")
    with pytest.raises(InputError, match=r"no setting models.0..handles; there is path, .*, guides"):
        read_config(path)


class Serving:
    """A `weft serve` that has said where it listens."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "weft.cli", "serve", "--port", "0", "--max-batch", "4", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if (found := re.search(r"http://127.0.0.1:(\d+)", line)) is not None:
                self.port = int(found[1])
                break
        assert hasattr(self, "port"), "".join(self.lines)
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def end(self, seconds: float = 30) -> int:
        """Its exit status, once it has ended."""
        status = self.process.wait(seconds)
        self._reading.join(60)
        return status

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr:
            self.lines += self.process.stderr


@contextmanager
def serving(*options: str) -> Iterator[Serving]:
    started = Serving(*options)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
            started.end()


@pytest.mark.slow
def test_it_serves_and_drains_on_sigterm() -> None:
    """What is under way is answered whole, nothing new is taken, and the status is 0."""
    with serving("--log-format", "json", "--trust-guides", "--drain-s", "20") as server:
        status, answer = ask(
            f"{server.url}/v1/chat/completions",
            {"messages": MESSAGES, "temperature": 0, "guided_regex": ".*"},
        )
        assert status == 200 and json.loads(answer["choices"][0]["message"]["content"]) == ANSWER
        body = json.dumps({"prompt": "Text:", "max_tokens": 900, "stream": True, "ignore_eos": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(head.encode() + body)
            received = connection.recv(100)
            server.process.send_signal(signal.SIGTERM)
            server.process.send_signal(
                signal.SIGINT
            )  # at the same time: it is the same end, not a second signal
            wait_for(lambda: ask(f"{server.url}/ready")[0] == 503)
            assert ask(f"{server.url}/v1/completions", {"prompt": "x"})[0] == 503
            while part := connection.recv(65536):
                received += part
        assert b"[DONE]" in received and b'"finish_reason":"length"' in received
        assert server.end() == 0
    accessed = [json.loads(line) for line in server.lines if line.startswith("{")]
    assert any(entry.get("path") == "/v1/completions" and entry.get("status") == 200 for entry in accessed)


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once() -> None:
    with serving("--api-key", "ada=one", "--api-key", "two") as server:
        assert ask(f"{server.url}/v1/models")[0] == 401
        for key in ("one", "two"):
            assert ask(f"{server.url}/v1/models", headers={"Authorization": f"Bearer {key}"})[0] == 200
        body = json.dumps({"prompt": "Text:", "max_tokens": 1000, "n": 8, "ignore_eos": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer two\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        address = ("127.0.0.1", server.port)
        with (
            socket.create_connection(address, 30) as connection,
            socket.create_connection(address, 30) as half,
        ):
            connection.sendall(head.encode() + body)
            half.sendall(head.encode() + body[:5])
            time.sleep(0.2)
            server.process.send_signal(signal.SIGINT)
            wait_for(lambda: ask(f"{server.url}/ready")[0] == 503)
            time.sleep(REPEAT_S)
            server.process.send_signal(signal.SIGINT)
            for one in (connection, half):  # nobody waited for the answers, nor for the body
                answer = rest(one)
                assert answer.startswith(b"HTTP/1.1 503 ") and b"choices" not in answer
        assert server.end(10) == 1
    assert not any("Traceback" in line for line in server.lines)


@pytest.mark.slow
def test_who_is_not_answered_in_time_is_told() -> None:
    """What takes longer than the server waits for ends with an error, whole or streamed."""
    with serving("--drain-s", "0") as server:
        asked = {"prompt": "Text:", "max_tokens": 1000, "n": 2, "ignore_eos": True, "max_drafts": 0}
        with ExitStack() as stack:
            connections = []
            for stream in (False, True):
                body = json.dumps({**asked, "stream": stream}).encode()
                head = (
                    f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
                )
                connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
                connections.append(stack.enter_context(connection))
                connection.sendall(head.encode() + body)
            begun = connections[1].recv(100)
            server.process.send_signal(signal.SIGTERM)
            whole, streamed = rest(connections[0]), begun + rest(connections[1])
        assert server.end() == 0
    assert whole.startswith(b"HTTP/1.1 503 ") and b"retry-after" in whole and b'"code": "draining"' in whole
    assert streamed.startswith(b"HTTP/1.1 200 ") and b"the server ended before the answer did" in streamed
    assert not any("Traceback" in line for line in server.lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("no/such/model",), "no such directory"),
        (("-m", "no/such/model"), "no such directory"),
        (("weft-tiny", "-m", "smollm2"), "two models: 'weft-tiny', and 'smollm2' of --model"),
        (("--config", "no/such/file.toml"), "can't be read"),
        (("--tool-style", "nope"), "tool_style is 'nope'"),
        (("--api-key", "a=x", "--api-key", "a=y"), "two keys of the name 'a'"),
    ],
)
def test_what_can_not_be_served_is_one_line(options: tuple[str, ...], said: str) -> None:
    told(options, said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("[[models]]\n", ("--tool-style", "hermes"), "--tool-style is for a model of the command line"),
        ("[[models]]\n", ("--speculation", "mtp"), "--speculation is for a model of the command line"),
        ("[[models]]\n[models.guides]\na = {regex = '('}\n", (), "guides.a: "),
        ("[[models]]\n[[models]]\n", (), "two models are called 'weft-tiny'"),
        ("[programs]\na = 'server.toml'\n", (), "programs.a: "),
        ("[server.api_keys]\na = 'x'\nb = 'x'\n", (), "two API keys are the same"),
    ],
)
def test_what_a_configuration_can_not_have_is_one_line(
    tmp_path: Path, text: str, options: tuple[str, ...], said: str
) -> None:
    (tmp_path / "server.toml").write_text(text)
    told(("--config", str(tmp_path / "server.toml"), *options), said)


def told(options: tuple[str, ...], said: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "weft.cli", "serve", "--port", "0", *options],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 2 and said in run.stderr.splitlines()[-1]


def test_a_port_in_use_is_told_before_a_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"127\.0\.0\.1, port {port}: .*--port"):
            check_address(ServerConfig(port=port))
    check_address(ServerConfig(port=0))


def test_an_engine_that_is_gone_ends_the_server() -> None:
    """So that a supervisor starts another."""
    import asyncio

    import uvicorn

    from weft import EngineConfig
    from weft.server.models import ServedModelConfig, build
    from weft.server.run import TICKS, DrainingServer
    from weft.server.settings import ServerConfig
    from weft.server.state import ServerState

    model = build(ServedModelConfig(engine=EngineConfig(max_batch=1)))
    state = ServerState(ServerConfig(), {model.name: model})
    server = DrainingServer(uvicorn.Config(app=lambda: None), state)
    assert not asyncio.run(server.on_tick(TICKS)) and server.failure is None
    model.client.close()
    assert not asyncio.run(server.on_tick(TICKS + 1))
    assert asyncio.run(server.on_tick(2 * TICKS)) and server.failure is not None
    model.close()
