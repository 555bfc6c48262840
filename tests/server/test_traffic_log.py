"""The lines of requests and of throughput: their fields, as JSON and as plain text."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest

from support.server.asking import ENDLESS, MESSAGES, ask
from support.server.running import Running
from support.server.sockets import raw, wait_for
from weft.grammar.base import CompiledGuide
from weft.grammar.compile.compiler import GuideCompiler
from weft.server.logs import JsonFormatter
from weft.server.metrics import GAUGES, ModelMetrics, Watched
from weft.server.traffic_log import Counts, log_interval, log_throughput

CHAT = "/v1/chat/completions"


@pytest.fixture
def lines(server: Running, caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The log of one test. The requests of earlier tests have had their lines."""
    wait_for(lambda: not server.state.tenants.num_inside)
    time.sleep(0.05)  # a line is written just after its request is no longer counted
    with caplog.at_level(logging.INFO, logger="weft.server"):
        yield caplog


def request_lines(lines: pytest.LogCaptureFixture, count: int) -> list[logging.LogRecord]:
    def named() -> list[logging.LogRecord]:
        return [record for record in lines.records if record.name == "weft.server.access"]

    wait_for(lambda: len(named()) >= count)
    assert len(named()) == count
    return named()


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """The members of the record's JSON object, after checking that it is flat."""
    members: dict[str, Any] = json.loads(JsonFormatter().format(record))
    assert not [name for name, value in members.items() if isinstance(value, dict | list)]
    return members


def test_an_answers_line(server: Running, lines: pytest.LogCaptureFixture) -> None:
    body = {"messages": MESSAGES, "temperature": 0, "guided_regex": "[0-9]{3}", "store": True}
    _, answer = ask(f"{server.url}{CHAT}", body, headers={"X-Request-Id": "my-7"})
    (record,) = request_lines(lines, 1)
    line, weft = fields(record), answer["weft"]
    assert line["request_id"] == "my-7" and line["model"] == "tiny" and line["tenant"] == "anybody"
    assert (line["method"], line["path"], line["status"], line["stream"]) == ("POST", CHAT, 200, False)
    assert line["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert line["answer_tokens"] == answer["usage"]["completion_tokens"]
    assert line["finish_reason"] == "stop" and line["guide"] == "regex" and line["ignored"] == "store"
    assert line["first_token_ms"] == round(weft["time_to_first_token_s"] * 1000, 1)
    assert 0 <= line["compile_ms"] <= line["queue_ms"] <= line["first_token_ms"] <= line["ms"]
    assert line["tokens_per_iteration"] == round((line["answer_tokens"] - 1) / weft["num_iterations"], 2)
    text = record.getMessage()
    assert text.startswith(f"POST {CHAT} 200 ms=") and "{" not in text
    assert " answer_tokens=" in text and text.endswith(" request_id=my-7")


def test_a_streams_line_comes_at_its_end(server: Running, lines: pytest.LogCaptureFixture) -> None:
    body = {"messages": MESSAGES, "stream": True, "n": 2, "max_tokens": 5, "ignore_eos": True}
    ask(f"{server.url}{CHAT}", body)
    line = fields(request_lines(lines, 1)[0])
    assert line["stream"] is True and line["answers"] == 2
    assert line["answer_tokens"] == 10 and line["finish_reason"] == "length" and "left" not in line


def test_a_client_that_leaves(server: Running, lines: pytest.LogCaptureFixture) -> None:
    with raw(server, ENDLESS) as connection:
        connection.recv(2000)
    line = fields(request_lines(lines, 1)[0])
    assert line["left"] is True and line["finish_reason"] == "cancelled"
    assert 0 < line["answer_tokens"] < ENDLESS["max_tokens"]


def test_a_client_that_leaves_before_a_whole_answer(server: Running, lines: pytest.LogCaptureFixture) -> None:
    with raw(server, {**ENDLESS, "stream": False}):
        wait_for(lambda: server.state.models["tiny"].client.engine.running)
    line = fields(request_lines(lines, 1)[0])
    assert line["left"] is True and line["finish_reason"] == "cancelled"
    assert "status" not in line and "answer_tokens" not in line


def test_a_client_that_leaves_after_the_last_token() -> None:
    """Its answers have ended, so none is cancelled."""
    watched = Watched(ModelMetrics(), 1)
    watched.num_submitted = 2
    watched.finish_reasons = ["stop"]
    watched.end_open("cancelled")
    watched.end_open("cancelled")
    assert watched.finish_reasons == ["stop", "cancelled"]


def test_a_guide_that_fails(server: Running, lines: pytest.LogCaptureFixture) -> None:
    ask(f"{server.url}{CHAT}", {"messages": MESSAGES, "guided_regex": "[0-9"})
    (line,) = map(fields, request_lines(lines, 1))
    assert (line["status"], line["finish_reason"], line["guide"]) == (400, "error", "regex")


def test_an_answer_that_ends_before_its_first_token(
    server: Running, lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its guide does not compile in time, so there are no times to log."""
    monkeypatch.setattr(GuideCompiler, "submit", lambda *_: Future[CompiledGuide]())
    ask(f"{server.url}{CHAT}", {"messages": MESSAGES, "guided_regex": "[0-9]{5}", "timeout_s": 0.2})
    (line,) = map(fields, request_lines(lines, 1))
    assert (line["finish_reason"], line["answer_tokens"]) == ("timeout", 0)
    assert not {"first_token_ms", "queue_ms", "compile_ms", "tokens_per_iteration"} & line.keys()


def test_refused_requests(server: Running, lines: pytest.LogCaptureFixture) -> None:
    ask(f"{server.url}{CHAT}", {"messages": MESSAGES, "verbosity": "loud", "model": "plain"})
    ask(f"{server.url}/v1/a%0Ab%20INFO%20forged=1")
    ask(f"{server.url}/{'x' * 5000}")
    first, second, third = request_lines(lines, 3)
    assert fields(first)["status"] == 400 and fields(first)["model"] == "plain"
    assert 'error="verbosity: must be ' in first.getMessage()
    assert second.getMessage().startswith(r'GET "/v1/a\nb INFO forged=1" 404 ms=')
    assert fields(third)["path"] == f"/{'x' * 199}" and len(third.getMessage()) < 500


def test_polling_is_logged_at_debug(server: Running, lines: pytest.LogCaptureFixture) -> None:
    for path in ("/health", "/ready", "/metrics", "/version"):
        ask(f"{server.url}{path}")
    (record,) = request_lines(lines, 1)
    assert fields(record)["path"] == "/version"
    with lines.at_level(logging.DEBUG, logger="weft.server"):
        ask(f"{server.url}/health")
        request_lines(lines, 2)


def test_counters_that_are_read_between_two_updates(lines: pytest.LogCaptureFixture) -> None:
    """The engine's thread may have counted an iteration with drafts, but not yet its draft tokens."""
    model = ModelMetrics()
    before = Counts.of(model)
    model.counters["weft:steps"] += 1
    model.counters["vllm:spec_decode_num_drafts"] += 1
    log_interval("m", before, Counts.of(model), dict.fromkeys(GAUGES, 0.0))
    (record,) = (record for record in lines.records if record.name == "weft.server.throughput")
    assert "draft_acceptance_rate" not in fields(record)


def test_throughput_while_there_is_traffic(server: Running, lines: pytest.LogCaptureFixture) -> None:
    """The busy model has a line, and the idle one has none. After the traffic both are silent."""
    metrics = server.state.metrics

    async def watch(num_lines: int) -> None:
        task = asyncio.create_task(log_throughput(metrics, every_s=0.2))
        while len(throughput()) < num_lines:
            await asyncio.sleep(0.02)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    def throughput() -> list[logging.LogRecord]:
        # The server's thread logs its own lines.
        mine = (record for record in lines.records if record.thread == threading.get_ident())
        return [record for record in mine if record.name == "weft.server.throughput"]

    with raw(server, ENDLESS) as connection:
        connection.recv(2000)
        asyncio.run(asyncio.wait_for(watch(1), 60))
    busy = fields(throughput()[0])
    assert {fields(record)["model"] for record in throughput()} == {"tiny"}
    assert busy["generation_tokens_per_s"] > 0 and busy["prompt_tokens_per_s"] >= 0
    assert busy["running"] in (0, 1) and 0 <= busy["kv_cache_usage"] <= 1
    assert 0 <= busy["draft_acceptance_rate"] <= 1 <= busy["mean_acceptance_length"]
    text = throughput()[0].getMessage()
    assert text.startswith("tiny: prompt ") and "% of drafts accepted" in text and "{" not in text
    wait_for(lambda: metrics.gauges("tiny")["vllm:num_requests_running"] == 0)
    count = len(throughput())
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(watch(count + 1), 1))
