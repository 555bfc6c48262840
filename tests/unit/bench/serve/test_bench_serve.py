"""`weft bench serve`: what its figures mean, and small runs of the real executor. No timing is judged."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from weft.errors import InputError, RequestError
from weft.executor import InflightBatchingStats, IterationStats, Result, TimingMetrics
from weft.grammar import Guide
from weft.trace import Slice
from weft_bench.report import Report
from weft_bench.serve import run as serve
from weft_bench.serve.clients import Clients, Load, Sent, Window, note_times, poisson
from weft_bench.serve.loop_time import idle_times, measure_loop, own_times
from weft_bench.serve.ratios import ratio
from weft_bench.serve.run import percentile, plot
from weft_bench.serve.setup import Loads, Setup, numbers, span
from weft_bench.serve.workload import ENDLESS, Workload, is_guided

TOKENS = 6


@pytest.fixture(scope="module")
def fixed() -> Iterator[Clients]:
    """Clients of an executor for four, whose answers all have the same length."""
    workload = Workload.heldout(None, 8, TOKENS)
    with Setup(device="cpu").serving(workload, 4) as clients:
        yield clients


def test_percentiles_are_values_that_came() -> None:
    assert [percentile([3.0, 1.0, 2.0], p) for p in (0, 33, 34, 67, 99)] == [1.0, 1.0, 2.0, 3.0, 3.0]
    assert percentile(list(range(100)), 99) == 98 and percentile(list(range(101)), 99) == 99


@pytest.mark.parametrize("percent", [0, 1, 25, 50, 99, 100])
def test_guided_share_is_exact_and_spread(percent: int) -> None:
    assert sum(is_guided(i, percent) for i in range(100, 200)) == percent
    if percent == 25:
        assert [i for i in range(8) if is_guided(i, percent)] == [3, 7]


def test_lengths_of_prompts_are_random_between_two() -> None:
    short = Workload.heldout(None, 40)
    long = Workload.heldout(None, 40, TOKENS, (200, 300))
    lengths = [len(prompt) for prompt in long.prompts]
    assert 200 <= min(lengths) < 220 and 280 < max(lengths) <= 300
    for prompt, last in zip(long.prompts, short.prompts, strict=True):
        assert prompt[-len(last) :] == last  # the answer is to the last of its prompts
    assert long.longest == max(lengths) + TOKENS
    cut = Workload.heldout(None, 4, TOKENS, (5, 5))
    assert [list(prompt) for prompt in cut.prompts] == [prompt[-5:] for prompt in short.prompts[:4]]


def test_arrivals_come_at_the_rate_and_at_random() -> None:
    moments = list(islice(poisson(5.0, 20.0), 4000))
    gaps = [b - a for a, b in zip([5.0, *moments], moments, strict=False)]
    assert min(gaps) > 0 and moments[-1] - 5.0 == pytest.approx(200, rel=0.05)
    # Of an exponential distribution the mean is the standard deviation.
    variance = sum((gap - 0.05) ** 2 for gap in gaps) / len(gaps)
    assert variance**0.5 == pytest.approx(0.05, rel=0.1)


def test_what_an_answered_request_adds() -> None:
    window = Window(seconds=2.0, tokens=10)
    timing = TimingMetrics(
        arrival_time=timedelta(seconds=100.5),
        first_scheduled_time=timedelta(seconds=101.25),
        first_token_time=timedelta(seconds=101.5),
        guide_ready_time=timedelta(seconds=101),
    )
    note_times(
        window,
        Sent(due=100.0, max_tokens=9, first=102.0, last=104.0, first_tokens=1, tokens=9, longest_gap=0.75),
        timing,
    )
    note_times(
        window, Sent(due=100.0, max_tokens=1, first=102.0, last=102.0, first_tokens=1, tokens=1), timing
    )
    assert window.compile == [0.5, 0.5] and window.queue == [0.25, 0.25]
    assert window.first_token == [1.5, 1.5]  # 2 s in the client's eyes, of which half a second for the guide
    assert window.user_speed == [4.0]  # of one token there is no speed
    assert window.longest_gap == [0.75]  # and no gap
    assert window.tokens_per_s == 5.0


def test_a_token_s_latency_is_its_share_of_the_time_between_responses(fixed: Clients) -> None:
    clients = Clients(fixed.executor, fixed.workload)
    clients.under_way[1] = Sent(due=0.0, max_tokens=TOKENS)
    window = Window()
    for now, numbers_of_tokens in ((1.0, [2]), (2.0, [1, 3])):
        results = [Result(output_token_ids=[[5] * count]) for count in numbers_of_tokens]
        assert not clients.note(window, 1, results, now)
    assert window.gaps == [0.25] * 4 and window.tokens == 6
    assert clients.under_way[1].longest_gap == 1.0


@pytest.mark.serial
def test_closed_loop_counts_whole_answers(fixed: Clients) -> None:
    window = fixed.window(Load(clients=4, guided_percent=50), 1.0)
    assert window.requests and window.tokens >= 4 * TOKENS
    assert window.seconds >= 1.0
    assert set(window.per_iteration) == {1.0}
    assert len(window.first_token) == len(window.compile) == window.requests
    assert min(window.gaps) > 0 and 0 <= min(window.queue) < min(window.first_token)


def test_open_loop_sends_at_the_rate_whatever_is_answered(fixed: Clients) -> None:
    sent: list[float] = []
    clients = Clients(fixed.executor, fixed.workload)
    send = clients.send

    def noted(load: Load, due: float, max_tokens: int | None = None) -> None:
        sent.append(due)
        send(load, due, max_tokens)

    clients.send = noted  # type: ignore[method-assign]
    begin = time.perf_counter()
    clients.window(Load(rate=200.0), 0.4)
    num_due = 200.0 * (sent[-1] - begin)  # a busy machine opens and closes the window late
    assert num_due > 65 and len(sent) == pytest.approx(num_due, rel=0.35)
    assert not clients.under_way


def test_a_window_leaves_nothing_behind(fixed: Clients) -> None:
    fixed.window(Load(clients=3, guided_percent=100), 0.05)
    fixed.executor.get_latest_iteration_stats()
    assert fixed.executor.get_num_responses_ready() == 0
    fixed.window(Load(clients=1), 0.05)
    stats = fixed.executor.get_latest_iteration_stats()
    assert max(one.num_active_requests for one in stats) == 1


def test_an_answer_of_another_length_is_refused(fixed: Clients) -> None:
    executor, workload = fixed.executor, fixed.workload
    executor.register_guide(ENDLESS, Guide.regex("[0-9]"))  # an answer that ends
    with pytest.raises(RequestError, match="should have"):
        fixed.window(Load(clients=1, guided_percent=100), 0.2)
    workload.prepare(executor)
    assert fixed.window(Load(clients=1, guided_percent=100), 0.2).requests


def iteration(own_ms: float, second: float, *, batch: int = 4, reading: int = 0) -> IterationStats:
    """Of 10 ms and what the loop took; it ends at a second of some minute."""
    found = InflightBatchingStats(num_gen_requests=batch, num_context_requests=reading)
    return IterationStats(
        timestamp=f"01-02-2025 03:04:{second:09.6f}",
        iter_latency_ms=10.0 + own_ms,
        model_latency_ms=10.0,
        inflight_batching_stats=found,
    )


def test_own_time_is_of_whole_batches_that_follow_one_another() -> None:
    stats = [
        iteration(9.0, 1.0, batch=3),
        iteration(0.2, 2.0),
        iteration(0.4, 2.0105),  # began 0.1 ms after the one before
        iteration(9.0, 3.0, reading=1),
        iteration(0.8, 4.0),
        iteration(0.1, 4.0105),  # and this 0.4 ms
        iteration(0.3, 4.0209),
    ]
    found = own_times(stats, 4)
    assert found == {"iterations": 3, "iteration_us": 10200, "own_us": 200, "between_us": 100}
    with pytest.raises(InputError, match="more seconds"):
        own_times(stats, 5)


def test_idle_time_is_that_in_which_no_stream_runs() -> None:
    def node(label: str, begin: float, end: float, stream: int = 0) -> Slice:
        return Slice(label, "kernel", stream, 0, begin, end)

    slices = [
        node("target_forward", 0, 50),
        node("mask", 10, 70, stream=1),
        node("sample", 60, 80),
        node("target_forward: embed", 180, 190),
        node("target_forward: linear", 190, 200),
        node("sample", 205, 210),
        node("target_forward", 240, 250),
    ]
    assert idle_times(slices) == [100, 35]


def test_loop_s_own_time_by_statistics_and_by_trace(fixed: Clients) -> None:
    found = measure_loop(fixed, Load(clients=1, guided_percent=100), 0.3)
    assert found["iterations"] > 3 and found["batch"] == 1
    assert 0 < found["own_us"] < found["iteration_us"]
    assert 0 < found["own_not_streaming_us"] < found["iteration_us"]
    assert found["idle_in_trace_us"] > 0


def test_ratios_are_of_rounds_that_take_turns() -> None:
    turns: list[str] = []
    values = {"a": iter([2.0, 4.0, 9.0, 9.0, 8.0, 8.0]), "b": iter([1.0, 2.0, 3.0, 3.0, 4.0, 4.0])}

    def side(name: str) -> Any:
        return lambda: turns.append(name) or next(values[name])

    found = ratio("a / b", side("a"), side("b"), 3)
    assert "".join(turns) == "abba" * 3
    assert found == {"compared": "a / b", "ratio": 2.0, "least": 2.0, "most": 3.0, "tokens_per_s": [8, 3]}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Setup(speculation="guess"), "one of none, eagle3"),
        (lambda: Setup(policy="fair"), "guaranteed_no_evict"),
        (lambda: Setup(overlap="True"), "auto, on, off"),
        (lambda: Loads(clients=(), rates=()), "nothing to measure"),
        (lambda: Loads(clients=(0,)), "at least 1"),
        (lambda: Loads(rates=(0.0,)), "above 0"),
        (lambda: Loads(guided_percents=(101,)), "0 to 100"),
        (lambda: Loads(seconds=0), "above 0"),
        (lambda: Loads(fixed_tokens=1), "at least 2"),
        (lambda: Loads(prompts=0), "at least 1"),
        (lambda: numbers("clients", "1,two", int), "commas"),
        (lambda: span("prompt_tokens", "100-x"), "two numbers with a dash"),
        (lambda: Loads(prompt_tokens=(600, 100)), "fewest and the most"),
    ],
)
def test_what_cannot_be_measured_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_a_span_is_two_numbers_or_one() -> None:
    assert [span("prompt_tokens", text) for text in ("", "100-600", "98")] == [None, (100, 600), (98, 98)]


def test_too_short_a_window_is_said() -> None:
    with pytest.raises(InputError, match="more seconds"):
        serve.row(Load(clients=2), Window(seconds=1.0))


@pytest.mark.serial
@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "static_batch"])
def test_small_run_with_drafts(policy: str, tmp_path: Path) -> None:
    setup = Setup(None, "cpu", "ngram", 3, policy, "on", reuse=True)
    loads = Loads((1, 3), (20.0,), (0, 100), seconds=1.0, prompts=4, rounds=0)
    report = serve.run(setup, loads)
    assert [(row["load"], row["guided_percent"]) for row in report.rows] == [
        *[("1 client", 0), ("3 clients", 0), ("1 client", 100), ("3 clients", 100)],
        *[("20 requests/s", 0), ("20 requests/s", 100)],
    ]
    for row in report.rows:
        assert row["tokens_per_s"] > 0 and row["requests"] > 0
        assert row["tokens_per_iteration"] > 1.0
        assert row["first_token_p99_ms"] >= row["first_token_p50_ms"] > row["queue_p50_ms"] >= 0
        assert row["token_p99_ms"] >= row["token_p50_ms"] > 0
        assert row["longest_gap_max_ms"] >= row["longest_gap_p50_ms"] >= row["token_p50_ms"]
        assert row["compile_p99_ms"] >= 0
    assert report.summary["speculation"] == "ngram" and report.summary["policy"] == policy
    written = json.loads(report.write(tmp_path).read_text())
    assert written["rows"] == report.rows and "machine" in written


@pytest.mark.slow
def test_comparisons_and_loop_are_in_the_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft_bench.serve import ratios as serve_ratios

    for name, value in {"MANY": 2, "TOKENS": 4, "LOOP_TOKENS": 12, "PROMPTS": 4}.items():
        monkeypatch.setattr(serve_ratios, name, value)
    report = serve.run(
        "cpu", Loads((1,), seconds=0.15, prompts=4, fixed_tokens=4, rounds=1, guided_percents=(0,))
    )
    compared = report.summary["compared"]
    assert [one["compared"].split()[0] for one in compared] == ["2", "100", "overlap"]
    assert all(one["least"] <= one["ratio"] <= one["most"] for one in compared)
    assert [one["guided_percent"] for one in report.summary["loop"]] == [0, 100]


def test_plot_draws_a_line_for_each_share(tmp_path: Path) -> None:
    def row(load: str, percent: int) -> dict[str, Any]:
        return {"load": load, "guided_percent": percent, "user_tokens_per_s": 9.0, "tokens_per_s": 90}

    rows = [row(load, percent) for percent in (0, 100) for load in ("1 client", "8 clients", "3 requests/s")]
    summary = {"speculation": "eagle3", "num_draft_tokens": 3, "model": "weft-tiny", "device": "cpu"}
    plot(Report("serve", rows, summary), tmp_path / "serve.svg")
    drawn = (tmp_path / "serve.svg").read_text()
    for text in ("100 % guided", "1 client to 8 clients", "eagle3, K=3"):
        assert f"<!-- {text}" in drawn or text in drawn
    with pytest.raises(InputError, match="numbers of clients"):
        plot(Report("serve", rows[2:3], summary), tmp_path / "none.svg")


def test_command_names_its_options() -> None:
    from typer.testing import CliRunner

    from weft_bench.cli import app
    from weft_bench.cli.every import BENCHES

    assert "serve" in BENCHES
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert shown.exit_code == 0
    for option in (
        "--clients",
        "--rates",
        "--prompt-tokens",
        "--guided",
        "--speculation",
        "--policy",
        "--overlap",
        "--reuse",
        "--out",
    ):
        assert option in shown.output
