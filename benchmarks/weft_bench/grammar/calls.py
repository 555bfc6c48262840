"""Compares calls of native and Python matchers, for the same compiled guide and vocabulary.

Both alternate for each kind of call, so that a busy machine slows them alike. A batch is the cost of an iteration's
commit in `GuidedState`: each row accepts a token and fills the next mask. While a Python thread is busy, a Python
matcher waits for the GIL in each call. A native matcher does not need the GIL.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from weft.grammar import Guide, Matcher, Vocabulary
from weft.grammar.xgrammar.backend import CompiledXGrammar, XGrammarBackend
from weft.guided.state import GuidedShape, GuidedState
from weft.runtime import cpu
from weft_bench.report import Report
from weft_bench.vocabulary import synthetic_vocabulary

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "tags"],
}
TEXT = b'{"name": "weft and war'


def run(vocab: int = 131072, batch: int = 64, repeat: int = 15) -> Report:
    """Return a row for each kind of call: microseconds per call, as the median of `repeat`, and the ratio of Python
    to native."""
    vocabulary = synthetic_vocabulary(vocab)
    # max_whitespace as in the published figures
    native, python = (
        compiled(XGrammarBackend(vocabulary, native=native), Guide.json_schema(SCHEMA, max_whitespace=8))
        for native in (True, False)
    )
    rows = []
    for name, make in [("fill", fill), ("accept + rollback", accept_and_rollback)]:
        calls = [make(matcher_at(guide, vocabulary), vocab) for guide in (native, python)]
        rows.append(row(name, take_turns(calls, 200, repeat)))
    states = [state_of(guide, vocabulary, batch) for guide in (native, python)]
    rows.append(row(f"commit of {batch}", take_turns([state.commit for state in states], 1, repeat)))
    cpu.set_schedule("threads")
    try:
        stream = cpu.Stream()
        seconds = [[commit_as_callback(state, stream) for state in states] for _ in range(repeat)]
    finally:
        cpu.set_schedule("inline")
    busy = [statistics.median(column) for column in zip(*seconds, strict=True)]
    rows.append(row(f"commit of {batch}, Python busy", busy))
    return Report("grammar", rows, {"vocab": vocab, "batch": batch, "words": -(-vocab // 32)})


def row(name: str, seconds: list[float]) -> dict[str, object]:
    """Return a row of the report."""
    native, python = seconds
    return {
        "call": name,
        "native_us": native * 1e6,
        "python_us": python * 1e6,
        "python_over_native": python / native,
    }


def compiled(backend: XGrammarBackend, guide: Guide) -> CompiledXGrammar:
    """Compile the guide."""
    made = backend.compile(guide)
    assert isinstance(made, CompiledXGrammar)
    return made


def matcher_at(guide: CompiledXGrammar, vocabulary: Vocabulary) -> Matcher:
    """Return a matcher inside a string, where most tokens are allowed."""
    matcher = guide.matcher()
    for byte in TEXT:
        assert matcher.accept(vocabulary.tokens.index(bytes([byte])))
    return matcher


def fill(matcher: Matcher, vocab: int) -> Callable[[], object]:
    """Return a function that fills one mask."""
    mask = np.zeros(-(-vocab // 32), dtype=np.int32)
    return lambda: matcher.fill(mask)


def accept_and_rollback(matcher: Matcher, vocab: int) -> Callable[[], object]:
    """Return a function that accepts a token and rolls it back."""

    def call() -> None:
        matcher.accept(1 + ord("e"))
        matcher.rollback(1)

    return call


def state_of(guide: CompiledXGrammar, vocabulary: Vocabulary, batch: int) -> GuidedState:
    """Make a state in which every commit accepts one more token in each of `batch` rows."""
    state = GuidedState(GuidedShape(batch, 0, vocabulary.vocab_size, vocabulary.end_ids))
    state.push(range(batch), {slot: matcher_at(guide, vocabulary) for slot in range(batch)})
    state.fetch()
    state.verified_host[:, 1] = torch.tensor(1 + ord("e"))
    return state


def commit_as_callback(state: GuidedState, stream: cpu.Stream) -> float:
    """Return the seconds of a commit on the driver's thread, while this thread computes in Python continuously."""
    before = state.counters("commit")
    stream.hostfunc(state.task("commit"))
    while state.counters("commit").calls == before.calls:
        sum(range(1000))
    stream.synchronize()
    assert not state.num_failed
    return state.counters("commit").seconds - before.seconds


def take_turns(calls: list[Callable[[], object]], inner: int, repeat: int) -> list[float]:
    """Return the median seconds of each call. The calls alternate."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeat):
        for call, collected in zip(calls, times, strict=True):
            start = time.perf_counter()
            for _ in range(inner):
                call()
            collected.append((time.perf_counter() - start) / inner)
    return [statistics.median(collected) for collected in times]
