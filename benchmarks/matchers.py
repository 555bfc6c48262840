"""Compares native matchers with each grammar library as its documentation calls it, on the same guides and tokens.

    .venv/bin/python benchmarks/matchers.py --help

A walk fills the mask and accepts the next token until the end of the text. A batch is a step of many rows at
different positions, in which each row accepts a token and fills its mask. weft's batch step is the commit of
`GuidedState`. All ways of calling alternate, so that a busy machine slows them alike. Walks are timed in CPU time of
the thread, batches in wall time. The baseline is the library's fastest way.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from library_calls import OWN_CALLS, OwnCalls, Place, Step, Walk
from weft.errors import GuideError, InputError
from weft.grammar import CompiledGuide, Guide, GuideCompiler, Vocabulary
from weft.guided.grammar_stream import default_workers
from weft.guided.state import GuidedShape, GuidedState
from weft.tiny.records import example
from weft_bench.cli.app import OutOption, finish, measured, script
from weft_bench.grammar.schema_files import TextTokens, read, some, text_of
from weft_bench.report import Report
from weft_bench.vocabulary import synthetic_vocabulary

NUM_TEXTS = 24
NUM_STEPS = 16
NATIVE = "native"


@dataclass(frozen=True)
class Text:
    """A guide, and the tokens of a text that it accepts."""

    compiled: CompiledGuide
    tokens: list[int]


def run(
    source: Path | None = None,
    vocab: int = 131072,
    batches: Sequence[int] = (1, 8, 64),
    texts: int = NUM_TEXTS,
    repeat: int = 15,
) -> Report:
    """Return microseconds per token, and the ratio of native to the library's fastest way. Times are medians of
    `repeat` turns.

    Each library has a row for walks and one for each batch size. `source` holds schemas with instances (`weft bench
    grammar`); the default is synthetic records.
    """
    vocabulary = synthetic_vocabulary(vocab)
    rows = []
    for backend, calls in OWN_CALLS.items():
        own = calls(vocabulary)
        found = texts_of(backend, vocabulary, source, texts)
        rows.append(walks_row(backend, own, found, vocab, repeat))
        rows += [batch_row(backend, own, found, vocabulary, batch, repeat) for batch in batches]
    return Report(
        "matchers",
        rows,
        {
            "texts": "records" if source is None else source.name,
            "num_texts": len(found),
            "vocab": vocab,
            "repeat": repeat,
        },
    )


def texts_of(backend: str, vocabulary: Vocabulary, source: Path | None, count: int) -> list[Text]:
    """Return `count` guides that the backend compiles, each with a valid text."""
    tokens, compiler = TextTokens(vocabulary), GuideCompiler(vocabulary, backend=backend)
    if source is None:
        rng = random.Random(0)
        given = [(record.schema, record.answer) for record in (example(rng, "heldout") for _ in range(count))]
    else:
        files = [file for file in some(read(source), None, 0) if not file.problem]
        given = [
            (f.schema, next(data for ok, data in f.tests if ok))
            for f in files
            if any(ok for ok, _ in f.tests)
        ]
    found: list[Text] = []
    row = np.zeros(-(-vocabulary.vocab_size // 32), dtype=np.int32)
    for schema, data in given:
        text = tokens.encode(text_of(data, "spaced"))
        try:
            guide = Guide.json_schema(schema, strict=False, max_whitespace=8)  # as in the published figures
            compiled = compiler.compile_part(guide)
        except GuideError:
            continue
        if len(text) > 1 and compiled.matcher().walk(text, row)[0] == len(text):
            found.append(Text(compiled, text))
        if len(found) == count:
            break
    return found


def walks_row(backend: str, own: OwnCalls, texts: Sequence[Text], vocab: int, repeat: int) -> dict[str, Any]:
    """Return the row of walks over all texts: seconds per token, and the ratio of the text with the worst ratio."""
    total: Counter[str] = Counter()
    worst = 0.0
    for text in texts:
        ways = {NATIVE: native_walk(text, vocab), **own.walks(text.compiled, text.tokens)}
        seconds = in_turns(ways, repeat)
        total.update(seconds)
        worst = max(worst, seconds[NATIVE] / min(taken for way, taken in seconds.items() if way != NATIVE))
    num_tokens = sum(len(text.tokens) for text in texts)
    return row(backend, "walk", {way: taken / num_tokens for way, taken in total.items()}, worst)


def native_walk(text: Text, vocab: int) -> Walk:
    """Return a walk with weft's native matcher."""
    matcher = text.compiled.matcher()
    mask = np.zeros(-(-vocab // 32), dtype=np.int32)

    def walk() -> None:
        matcher.reset()
        assert matcher.walk(text.tokens, mask)[0] == len(text.tokens)

    return walk


def in_turns(ways: dict[str, Walk], repeat: int) -> dict[str, float]:
    """Return the median CPU seconds of this thread for each way. The first turn does not count."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeat + 1):
        for way, walk in ways.items():
            start = time.thread_time()
            walk()
            times[way].append(time.thread_time() - start)
    return {way: statistics.median(taken[1:]) for way, taken in times.items()}


def batch_row(
    backend: str, own: OwnCalls, texts: Sequence[Text], vocabulary: Vocabulary, batch: int, repeat: int
) -> dict[str, Any]:
    """Return the row of a step of `batch` rows: seconds per row for each way of calling."""
    places, tokens = places_of(texts, batch, NUM_STEPS)
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeat):
        state, native = native_step(places, vocabulary)
        for way, step in {NATIVE: native, **own.steps(places)}.items():
            step(tokens[0])
            start, counted = time.perf_counter(), state.seconds
            for of_rows in tokens[1:]:
                step(of_rows)
            # An engine runs a commit without Python in between, so the state's own clock is used.
            taken = state.seconds - counted if way == NATIVE else time.perf_counter() - start
            times[way].append(taken / (NUM_STEPS * batch))
    return row(backend, f"batch of {batch}", {way: statistics.median(taken) for way, taken in times.items()})


def places_of(texts: Sequence[Text], batch: int, steps: int) -> tuple[list[Place], list[list[int]]]:
    """Return the start of each row, and the token of each row in each step. An extra first step warms up."""
    long = [text for text in texts if len(text.tokens) > steps]
    if not long:
        raise InputError(f"no text has more than {steps} tokens; take other schemas")
    rng = random.Random(batch)
    places, tokens = [], []
    for number in range(batch):
        text = long[number % len(long)]
        start = rng.randrange(len(text.tokens) - steps)
        places.append(Place(text.compiled, text.tokens[:start]))
        tokens.append(text.tokens[start : start + steps + 1])
    return places, [list(of_rows) for of_rows in zip(*tokens, strict=True)]


def native_step(
    places: Sequence[Place], vocabulary: Vocabulary, workers: int | None = None
) -> tuple[GuidedState, Step]:
    """Return a state, and a function that makes its next commit. `workers` defaults to an engine's number."""
    matchers = [place.compiled.matcher() for place in places]
    for matcher, place in zip(matchers, places, strict=True):
        assert all(matcher.accept(token) for token in place.taken)
    workers = default_workers() if workers is None else workers
    state = GuidedState(
        GuidedShape(len(places), 0, vocabulary.vocab_size, vocabulary.end_ids), workers=workers
    )
    state.push(range(len(places)), dict(enumerate(matchers)))
    state.fetch()
    verified = state.verified_host.numpy()
    rows = len(places)

    def step(tokens: Sequence[int]) -> None:
        verified[:rows, 1] = tokens
        state.commit()
        assert not state.num_failed

    return state, step


def row(backend: str, call: str, seconds: dict[str, float], worst: float | None = None) -> dict[str, Any]:
    """Return a row of the report: the times of native and of each of the library's ways, and the ratio of native to
    the fastest of these."""
    own = {way: taken * 1e6 for way, taken in seconds.items() if way != NATIVE}
    best = min(own, key=lambda way: own[way])
    native = seconds[NATIVE] * 1e6
    return {
        "backend": backend,
        "call": call,
        "native_us": native,
        "own_us": own[best],
        "native_over_own": native / own[best],
        "worst_text": worst,
        "own_way": best,
        "all_own_us": own,
    }


def main(
    source: Annotated[
        Path | None,
        typer.Argument(help="Schemas with instances, as `weft bench grammar` takes them. Default: made up."),
    ] = None,
    vocab: Annotated[int, typer.Option(min=300, help="Made-up tokens.")] = 131072,
    texts: Annotated[int, typer.Option(min=1, help="How many guides, with a text of each.")] = 24,
    repeat: Annotated[int, typer.Option(min=1, help="Turns of each way of calling.")] = 15,
    out: OutOption = None,
) -> None:
    """Native matchers compared with the fastest way to call each grammar library, one by one and in batches."""
    report = measured(out, lambda: run(source, vocab, texts=texts, repeat=repeat))
    finish(report, out)


if __name__ == "__main__":
    script(main)
