"""`weft bench replay` times the graphs that its rows name. No timing is judged."""

from __future__ import annotations

from functools import partial

import torch

from weft.runtime import get
from weft.runtime.dump import dump_graph
from weft_bench.runtime import replay


def test_every_node_of_hand_offs_is_of_the_other_kind_than_the_one_before() -> None:
    """A device function that records nothing would leave no node, and no hand-off to time."""
    runtime = get("cpu")
    stream, x = runtime.stream(), torch.zeros(1)
    dump = dump_graph(runtime, stream, partial(replay.hand_offs, x, stream, 10))
    assert [kind for kind, _ in dump.nodes] == ["kernel", "host"] * 5
    assert {(n, n + 1) for n in range(9)} <= set(dump.edges)


def test_all_rows_are_timed() -> None:
    report = replay.run("cpu", nodes=20, repeat=2)
    assert len(report.rows) == 7 and report.failures == []
    assert all(row["us_per_node"] > 0 for row in report.rows)
