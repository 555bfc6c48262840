"""`weft serve` is ready when it says so: what it logs while it starts, the first guide after that, and the end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.server.asking import ask
from weft.core.awake import cpu_seconds
from weft.server.run import base_url


class Started:
    """A `weft serve` that listens, and the lines that it has logged by then."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "weft.cli", "serve", "--port", "0", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stderr is not None
        self.lines: list[str] = []
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if (ready := re.search(r"ready: .* (http://[^ ]+)/v1", line)) is not None:
                self.url = ready[1]
                return
        self.process.wait()
        self.process.stderr.close()
        raise AssertionError("\n".join(self.lines))

    def compile_s(self, guide: dict[str, Any], model: str = "weft-tiny") -> float:
        """The seconds that a request waits for its guide."""
        body = {"prompt": "a", "max_tokens": 2, "guide": guide, "model": model}
        status, answer = ask(f"{self.url}/v1/completions", body)
        assert status == 200, answer
        seconds = answer["weft"]["compile_s"]
        assert isinstance(seconds, float)
        return seconds

    def end(self) -> tuple[float, float, list[str]]:
        """End the process by SIGTERM. Returns the seconds and the CPU seconds after the line "drained", and all
        lines."""
        assert self.process.stderr is not None
        self.process.send_signal(signal.SIGTERM)
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if "drained" in line:
                break
        began, used = time.monotonic(), cpu_seconds(self.process.pid)
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        seconds, cpu_s = time.monotonic() - began, cpu_seconds(self.process.pid) - used
        self.lines += self.process.stderr.read().splitlines()
        assert self.process.wait() == 0
        return seconds, cpu_s, self.lines


@contextmanager
def started(*options: str) -> Iterator[Started]:
    server = Started(*options)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()
        assert server.process.stderr is not None
        server.process.stderr.close()


def schema(name: str) -> dict[str, Any]:
    return {"json_schema": {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}}


GUIDES = {"llguidance": schema, "xgrammar": lambda name: {"regex": name + "[0-9]{4}"}}
TRIES = 3
"""Servers to start until one is warm. A lazy start would delay the first guide of each; a busy machine rarely does."""


def is_warm(
    options: tuple[str, ...], models: tuple[str, ...], guide: Callable[[str], dict[str, Any]]
) -> bool:
    """Whether each model's first guide takes at most three times as long as others of its size."""
    with started(*options) as server:
        for model in models:
            first, *others = [server.compile_s(guide(f"name{number}"), model) for number in range(6)]
            # 10 ms: a trusted guide compiles in 1 ms, less than a thread may wait for the GIL.
            if first > 3 * statistics.median(others) + 0.01:
                return False
    return True


TWO = """
[[models]]
name = "first"
[[models]]
name = "second"
[models.speculation]
drafter = "ngram"
"""


@pytest.mark.serial
@pytest.mark.parametrize("options", [(), ("--trust-guides",)], ids=["tried", "trusted"])
@pytest.mark.parametrize("library", GUIDES)
def test_the_first_guide_takes_no_longer_than_others(library: str, options: tuple[str, ...]) -> None:
    assert any(is_warm(options, ("weft-tiny",), GUIDES[library]) for _ in range(TRIES))


@pytest.mark.serial
def test_every_model_is_warm(tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text(TWO)
    options = ("--config", str(tmp_path / "server.toml"))
    assert any(is_warm(options, ("first", "second"), schema) for _ in range(TRIES))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_leaves_the_helpers_to_the_server(number: signal.Signals) -> None:
    """Ctrl-C and systemd send one. Requests in flight still need the helpers."""
    with started() as server:
        server.compile_s(schema("name"))
        os.killpg(server.process.pid, number)
        assert server.process.stderr is not None
        lines = server.process.stderr.read()
        assert server.process.wait() == 0
    assert "drained" in lines and "died" not in lines


@pytest.mark.serial
def test_it_exits_within_a_second_after_the_drain() -> None:
    with started() as server:
        server.compile_s({"regex": "[0-9]{4}"})
        seconds, cpu_s, _ = server.end()
    assert seconds <= 1
    assert cpu_s < 0.1, "0.05 s, and 0.15 s with the interpreter's teardown"


@pytest.mark.slow
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_lines_say_what_happens(log_format: str) -> None:
    with started("--log-format", log_format, "--trust-guides", "--speculation", "none") as server:
        _, _, lines = server.end()
    if log_format == "json":
        own = [entry["message"] for line in lines if (entry := json.loads(line))["logger"] == "weft.server"]
    else:
        own = [line.partition(" INFO weft.server: ")[2] for line in lines if " weft.server: " in line]
    port = server.url.rpartition(":")[2]
    expected = [
        r"loading .*/weft-tiny …",
        r"weft-tiny: loaded in \d+\.\d s: LlamaForCausalLM, 2 million parameters in float32 on cpu; room for "
        r"33,280 tokens in pages of up to 64 MB",
        r"warm in \d+\.\d s",
        rf"page at http://127\.0\.0\.1:{port}",
        rf"ready: OpenAI's API at http://127\.0\.0\.1:{port}/v1",
        r"draining after SIGTERM: 0 requests in flight",
        r"drained",
    ]
    assert len(own) == len(expected)
    for line, pattern in zip(own, expected, strict=True):
        assert re.fullmatch(pattern, line), line
    assert len(lines) == len(own), "other loggers repeat nothing"


@pytest.mark.slow
def test_a_server_without_a_page_names_none() -> None:
    with started("--no-page", "--host", "0.0.0.0", "--trust-guides", "--api-key", "a=b") as server:
        assert not any("page at" in line for line in server.lines)
        assert server.lines[-1].endswith("/v1, on all addresses of this machine (0.0.0.0)")
        assert server.url.startswith("http://127.0.0.1:")
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=30):
            pass


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("models.example", "http://models.example:80"),
    ],
)
def test_an_address_is_one_that_a_browser_opens(host: str, url: str) -> None:
    assert base_url(host, 80) == url
