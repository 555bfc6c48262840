"""Where a guided iteration's time goes: the arithmetic over slices made up, and what a profiler writes."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import pytest
from rich.console import Console

from weft.trace import Slice
from weft.trace.timeline import slices_of
from weft_bench.engine.breakdown import GAPS, GRAMMAR, HOST, MODEL, WAITS, Recorded, Turn, table, write
from weft_bench.report import Report


def forward(begin: float, end: float, label: str = "forward") -> Slice:
    return Slice(label, "kernel", 7, 0, begin, end)


def host(begin: float, end: float) -> Slice:
    return Slice("commit", "host", 8, 0, begin, end)


GUIDED = Recorded(1, 130.0, [forward(0, 50), host(50, 60), forward(65, 100), forward(100, 110, "mask")])
PLAIN = Recorded(1, 105.0, [forward(0, 50), forward(52, 90)])


def test_tasks_and_waits_of_a_turn() -> None:
    assert GUIDED.tasks() == {
        (MODEL, "forward"): 85.0,
        (MODEL, "mask"): 10.0,
        (GRAMMAR, "commit"): 10.0,
        (MODEL, WAITS): 10.0,
        (MODEL, GAPS): 5.0,
        ("host", HOST): 20.0,
    }
    two = Recorded(2, 260.0, GUIDED.slices)
    assert two.tasks()[MODEL, "forward"] == 42.5


def test_a_recording_that_lasts_longer_than_the_host_took_has_no_time_of_the_host() -> None:
    """On a GPU what a turn launched may end behind it."""
    assert Recorded(1, 90.0, GUIDED.slices).tasks()["host", HOST] == 0.0


def test_the_grammars_stream_is_its_own_though_its_device_work_takes_longer() -> None:
    slow = Recorded(
        1, 200.0, [forward(0, 5), host(5, 10), Slice("copy", "kernel", 8, 0, 10, 110), forward(110, 120)]
    )
    tasks = slow.tasks()
    assert tasks[MODEL, "forward"] == 15 and tasks[GRAMMAR, "copy"] == 100 and tasks[MODEL, WAITS] == 105


def test_grammar_work_that_a_forward_hides_is_no_wait() -> None:
    hidden = Recorded(1, 60.0, [forward(0, 50), host(10, 30), forward(50, 60)])
    assert hidden.tasks()[MODEL, WAITS] == 0 and hidden.tasks()[GRAMMAR, "commit"] == 20


def test_rows_are_medians_and_their_differences_make_up_the_whole() -> None:
    slow = Recorded(1, 9000.0, [forward(0, 8000), forward(8000, 8001)])
    turn = Turn([PLAIN], [GUIDED])
    rows = table([turn, Turn([slow], [slow]), Turn([PLAIN, PLAIN, slow], [GUIDED])])
    by_task = {row["task"]: row for row in rows}
    assert by_task["forward"]["unguided_us"] == 88.0 and by_task["forward"]["difference_us"] == -3.0
    assert by_task["mask"]["unguided_us"] == 0 and by_task[WAITS]["difference_us"] == 10.0
    assert rows[-1]["task"] == "the iteration" and rows[-1]["difference_us"] == 25.0
    hidden = by_task["commit"][
        "difference_us"
    ]  # on a stream of its own: what of it is exposed is in the waits
    assert sum(row["difference_us"] for row in rows[:-1]) - hidden == pytest.approx(25.0)


def test_trace_has_the_turns_of_both_one_behind_the_other(tmp_path: Path) -> None:
    write([Turn([PLAIN] * 4, [GUIDED] * 4)] * 5, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert sorted(names.values()) == sorted([GRAMMAR, MODEL, "iterations"])
    turns = [e for e in events if e["ph"] == "X" and names[e["tid"]] == "iterations"]
    assert [e["name"] for e in turns] == ["unguided x 1"] * 8 + ["guided x 1"] * 8
    assert all(a["ts"] + a["dur"] < b["ts"] for a, b in itertools.pairwise(turns))


def test_profiles_of_a_gpu_become_slices() -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 5, "args": {}},
        {"ph": "X", "cat": "kernel", "name": "void gemm<64>(int)", "ts": 20, "dur": 5, "args": {"stream": 7}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 10, "dur": 2, "args": {"stream": 9}},
    ]
    assert slices_of({"traceEvents": events}) == [
        Slice("Memcpy HtoD", "memcpy", 9, 0, 0.0, 2.0),
        Slice("gemm", "kernel", 7, 0, 10.0, 15.0),
    ]
    events[1]["args"] = {"stream": 7, "grid": [448, 2, 1]}
    assert slices_of({"traceEvents": events}, with_grids=True)[1].label == "gemm 448x2x1"


def test_tables_of_a_summary_are_shown_as_tables() -> None:
    out = io.StringIO()
    Report("overhead", [{"batch": 1}], {"device": "cpu", "by_task": table([Turn([PLAIN], [GUIDED])])}).show(
        Console(file=out, width=120)
    )
    assert "weft bench overhead: by_task" in out.getvalue() and "device: cpu" in out.getvalue()
