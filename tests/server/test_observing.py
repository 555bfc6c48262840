"""What operators and pages see: metrics, the log, timelines."""

from __future__ import annotations

import json
from concurrent.futures import Future

import pytest

from support.server.asking import ANSWER, ENDLESS, MESSAGES, ask, events
from support.server.running import Running
from support.server.sockets import raw, wait_for
from weft.errors import GuideError
from weft.grammar.base import CompiledGuide
from weft.grammar.compile.compiler import GuideCompiler


def test_metrics_add_up(server: Running) -> None:
    before = samples(server)
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 40, "guided_regex": "[0-9]{3}", "n": 2}
    status, answer = ask(f"{server.url}/v1/chat/completions", body)
    assert status == 200
    ask(f"{server.url}/v1/chat/completions", {**body, "guided_regex": "[0-9"})
    after = samples(server)

    def grown(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    tiny = '{engine="0",model_name="tiny"'
    tokens = answer["usage"]["completion_tokens"]
    assert grown("vllm:generation_tokens_total" + tiny + "}") == tokens
    assert grown("vllm:prompt_tokens_total" + tiny + "}") == answer["usage"]["prompt_tokens"]
    ended = 'vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"}'
    assert grown(ended) == 2
    assert grown("vllm:time_to_first_token_seconds_count" + tiny + "}") == 2
    assert grown("weft:guided_requests_total" + tiny + "}") == 2
    assert grown('weft:refusals_total{engine="0",model_name="tiny",reason="guide"}') == 1
    assert grown("weft:grammar_seconds_total" + tiny + "}") > 0
    origins = {name: value for name, value in after.items() if name.startswith("weft:tokens_total")}
    assert any('origin="sampled"' in name for name in origins)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_answers_that_fail_are_counted(server: Running, is_streamed: bool) -> None:
    """Only those that the engine took: a refused body has no answers."""
    before = samples(server)
    body = {"messages": MESSAGES, "n": 2, "stream": is_streamed}
    for fields in ({"guided_regex": "[0-9"}, {"guided_regex": "[0-9]", "ignore_eos": True}):
        assert ask(f"{server.url}/v1/chat/completions", {**body, **fields})[0] == 400
    after = samples(server)
    for reason, count in (("error", 2), ("abort", 0), ("stop", 0)):
        name = f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="tiny"}}'
        assert after[name] - before[name] == count, reason


def test_who_leaves_is_counted(server: Running) -> None:
    """Those that waited longest leave, and figures without them would be too good."""
    before = samples(server)
    with raw(server, {**ENDLESS, "n": 2}) as connection:
        connection.recv(100)
    wait_for(lambda: not server.state.tenants.num_inside)
    after = samples(server)
    labels = 'engine="0",model_name="tiny"'
    for name, count in (
        (f"weft:left_requests_total{{{labels}}}", 1),
        ('vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"}', 2),
    ):
        assert after[name] - before.get(name, 0) == count
    first = f"vllm:time_to_first_token_seconds_count{{{labels}}}"
    assert after[first] > before[first]


def test_gauges_count_a_guide_that_compiles(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine makes no step while all requests wait for their guides."""
    guide: Future[CompiledGuide] = Future()
    monkeypatch.setattr(GuideCompiler, "submit", lambda *_: guide)
    waiting = 'vllm:num_requests_waiting{engine="0",model_name="tiny"}'
    compiling = 'weft:num_guides_compiling{engine="0",model_name="tiny"}'
    with raw(server, {"guided_regex": "[0-9]{4}"}) as connection:
        wait_for(lambda: samples(server)[compiling] == 1)
        assert samples(server)[waiting] == 1
        guide.set_exception(GuideError("no such thing"))
        assert b"no such thing" in connection.recv(65536)
    wait_for(lambda: samples(server)[compiling] == samples(server)[waiting] == 0)


def test_lengths_and_positions(server: Running) -> None:
    """The longest of a prompt's answers counts once. The positions of accepted drafts add up to their number."""
    before = samples(server)
    body = {"messages": MESSAGES, "max_tokens": 30, "n": 3}
    _, answer = ask(f"{server.url}/v1/chat/completions", {**body, "return_token_ids": True})
    after = samples(server)
    labels = '{engine="0",model_name="tiny"}'
    longest = "vllm:request_max_num_generation_tokens"
    assert after[f"{longest}_count{labels}"] - before[f"{longest}_count{labels}"] == 1
    lengths = [len(choice["token_ids"]) for choice in answer["choices"]]
    assert after[f"{longest}_sum{labels}"] - before[f"{longest}_sum{labels}"] == max(lengths)
    accepted = "vllm:spec_decode_num_accepted_tokens"
    positions = [
        after[f'{accepted}_per_pos_total{{engine="0",model_name="tiny",position="{place}"}}']
        for place in range(3)
    ]
    assert positions == sorted(positions, reverse=True) and sum(positions) > 0
    assert sum(positions) == after[f"{accepted}_total{labels}"]


def samples(server: Running) -> dict[str, float]:
    """What Prometheus would read, with labels in order."""
    found = {}
    text = ask(f"{server.url}/metrics")[1]
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            base, _, labels = name.partition("{")
            if labels:
                base += "{" + ",".join(sorted(labels.rstrip("}").split(","))) + "}"
            found[base] = float(value)
    return found


def test_request_ids_come_back(server: Running) -> None:
    import urllib.request

    for given, kept in (("my-id-7", True), ("bad id\u00e9", False)):
        headers = {"X-Request-Id": given.encode("latin-1").decode("latin-1")}
        with urllib.request.urlopen(
            urllib.request.Request(f"{server.url}/health", headers=headers)
        ) as answer:
            assert (answer.headers["x-request-id"] == given) == kept and answer.headers["x-request-id"]


def test_a_timeline_has_both_streams(server: Running) -> None:
    with raw(server, {**ENDLESS, "ignore_eos": False, "guided_regex": "[a-z ]{2000}"}):
        wait_for(lambda: server.state.models["tiny"].client.engine.running)
        status, found = ask(f"{server.url}/v1/timeline?ms=60")
    assert status == 200 and {"grammar stream", "model stream"} <= {
        track["name"] for track in found["tracks"]
    }
    assert all(one["end_us"] >= one["begin_us"] for one in found["slices"]) and len(found["slices"]) > 10
    assert ask(f"{server.url}/v1/timeline?ms=0")[0] == 400


def test_a_stream_is_well_formed(server: Running) -> None:
    """The events of a raw stream: JSON each, and [DONE]; an error after the first is one of them."""
    with raw(server, {"temperature": 0, "max_tokens": 40}) as connection:
        received = b""
        while b"[DONE]" not in received:
            received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"text/event-stream" in head and b"200" in head.split(b"\r\n")[0]
    text = "\n".join(line for line in body.decode().splitlines() if line.startswith("data: "))
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in events(text)) == json.dumps(
        ANSWER
    )
