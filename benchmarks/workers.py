"""Measures when sharing a batch's masks among threads pays off: `GuidedState`'s commit with 0, 1, 2, … workers.

    .venv/bin/python benchmarks/workers.py --help

Light rows write JSON records. In heavy batches, one row in eight has a mask that takes a thousand times as long. A
worker is woken only after a commit has lasted longer than the wake-up costs (`csrc/support/thread_pool.h`). The
numbers of workers alternate.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from matchers import Text, native_step, places_of, texts_of
from weft.grammar import Guide, GuideCompiler, Vocabulary
from weft.guided.grammar_stream import default_workers
from weft_bench.cli.app import OutOption, finish, measured, script
from weft_bench.grammar.schema_files import TextTokens, text_of
from weft_bench.report import Report
from weft_bench.vocabulary import synthetic_vocabulary

BACKEND = "xgrammar"
# XGrammar checks every token again in a long repetition like this.
HEAVY = {"type": "string", "pattern": "^[a-z ]{1,200}$"}
HEAVY_TEXT = "the quick brown fox jumps over the lazy dog and then some more words follow"
STEPS = {"light": 32, "heavy": 4}


def run(
    vocab: int = 131072,
    batches: Sequence[int] = (8, 16, 32, 64),
    workers: Sequence[int] | None = None,
    repeat: int = 9,
    texts: int = 24,
) -> Report:
    """Return the microseconds of a commit, as the median of `repeat` turns, and the speedup over no workers.

    Each kind of masks, batch size and number of workers has a row. By default, the number of workers goes from 0 to
    twice an engine's number, and at least to 2.
    """
    default = default_workers()
    workers = range(max(2, 2 * default) + 1) if workers is None else workers
    vocabulary = synthetic_vocabulary(vocab)
    light = texts_of(BACKEND, vocabulary, None, texts)
    heavy = [heavy_text(vocabulary), *light[:7]]
    rows = []
    for masks, given in (("light", light), ("heavy", heavy)):
        for batch in batches:
            rows += rows_of(masks, given, batch, workers, vocabulary, repeat if masks == "light" else 3)
    summary = {"vocab": vocab, "default_workers": default, "cores": os.cpu_count(), "repeat": repeat}
    return Report("workers", rows, summary)


def heavy_text(vocabulary: Vocabulary) -> Text:
    """Return a guide whose masks are slow, and a text for it."""
    guide = Guide.json_schema(HEAVY, max_whitespace=8)  # as in the published figures
    compiled = GuideCompiler(vocabulary, backend=BACKEND).compile_part(guide)
    return Text(compiled, TextTokens(vocabulary).encode(text_of(HEAVY_TEXT, "spaced")))


def rows_of(
    masks: str,
    texts: Sequence[Text],
    batch: int,
    workers: Sequence[int],
    vocabulary: Vocabulary,
    repeat: int,
) -> list[dict[str, Any]]:
    """Return a row for each number of workers."""
    places, tokens = places_of(texts, batch, STEPS[masks])
    times: dict[int, list[float]] = defaultdict(list)
    for _ in range(repeat):
        for number in workers:
            _, step = native_step(places, vocabulary, number)
            step(tokens[0])
            for of_rows in tokens[1:]:
                start = time.perf_counter()
                step(of_rows)
                times[number].append(time.perf_counter() - start)
    alone = statistics.median(times[workers[0]])
    return [
        {
            "masks": masks,
            "batch": batch,
            "workers": number,
            "commit_us": statistics.median(taken) * 1e6,
            "commit_mean_us": statistics.fmean(taken) * 1e6,
            "speedup": alone / statistics.median(taken),
        }
        for number, taken in times.items()
    ]


def main(out: OutOption = None) -> None:
    """The masks of a batch shared among threads: the masks and numbers of threads for which this pays off."""
    report = measured(out, run)
    finish(report, out)


if __name__ == "__main__":
    script(main)
