"""Measures grammar backends on real JSON schemas: the share that compiles, compile times, mask times, and correct
verdicts.

A separate process judges each file (`schema_process.py`), so that an endless or crashing schema becomes a row.
Compile times are wall time from the schema to its first matcher, with the backend's default cache. Mask and token
times are CPU time of the walking thread in native calls. An instance is accepted if the matcher accepts all of its
tokens and an end token.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from threading import local
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from weft import registry
from weft.errors import InputError
from weft.grammar import Vocabulary
from weft_bench.grammar.schema_files import STYLES, SchemaFile, read, some
from weft_bench.grammar.schema_process import JudgeProcess, Result
from weft_bench.grammar.schema_run import Settings
from weft_bench.report import Report
from weft_bench.vocabulary import synthetic_vocabulary

UNFINISHED = ("refused", "timeout", "crashed", "error", "unreadable")
SHOWN = (
    "backend",
    "compiled_pct",
    *UNFINISHED,
    "compile_p50_ms",
    "compile_p90_ms",
    "compile_p99_ms",
    "compile_max_ms",
    "mask_p50_us",
    "mask_p99_us",
    "mask_max_us",
    "valid_accepted_pct",
    "invalid_refused_pct",
    "unsaid",
    "masks",
)


@dataclass
class SchemaReport(Report):
    """A report with a row for each backend. `splits` has a row for each backend and split, `kinds` counts the
    problems by kind, and `problems` lists the problems of each file."""

    splits: list[dict[str, Any]] = field(default_factory=list)
    kinds: list[dict[str, Any]] = field(default_factory=list)
    problems: list[dict[str, Any]] = field(default_factory=list)

    def show(self, console: Console) -> None:
        """Print the most important columns. The file contains all."""
        rows = [{key: row[key] for key in SHOWN} for row in self.rows]
        Report(self.name, rows, self.summary).show(console)


def run(
    source: Path,
    vocabulary: Vocabulary,
    *,
    tokenizer: Path | None = None,
    backends: Sequence[str] = (),
    limit: int | None = None,
    timeout_s: float = 30.0,
    seed: int = 0,
    style: str = "spaced",
    any_order: bool = False,
    strict: bool = True,
    open_objects: bool = False,
    jobs: int = 1,
    names: bool = True,
) -> SchemaReport:
    """Judge the schemas of `source` (`schema_files.read`), or a random `limit` of them, with each backend (default:
    all).

    `tokenizer` is the folder of the vocabulary's tokenizer.json. `any_order`, `strict` and `open_objects` are
    settings of the guides. `jobs` processes judge concurrently, which disturbs their times. Without `names`, the
    report omits file names. Raises `InputError` for an invalid source, backend or style.
    """
    backends = backends or registry.names("grammars")
    for backend in backends:
        registry.load("grammars", backend)  # raises for unknown names
    if style not in STYLES:
        raise InputError(f"{style!r} is not a style; instances are written {' or '.join(STYLES)}")
    found = read(source)
    files = some(found, limit, seed)
    report = SchemaReport(
        "grammar-schemas",
        [],
        {
            "source": source.name,
            "schemas": len(files),
            "of": len(found),
            "instances": sum(len(file.tests) for file in files),
            "vocab": vocabulary.vocab_size,
            "tokens": "the tokenizer's" if tokenizer is not None else "the longest that fit",
            "style": style,
            "any_order": any_order,
            "strict": strict,
            "open_objects": open_objects,
            "timeout_s": timeout_s,
            "seed": seed,
            "jobs": jobs,
        },
    )
    for backend in backends:
        settings = Settings(backend, vocabulary, tokenizer, style, any_order, strict, open_objects)
        results = judge_all(settings, files, timeout_s, jobs)
        report.rows.append({"backend": backend, **figures(results)})
        for split in sorted({file.split for file in files}):
            of_split = [result for result in results if result.file.split == split]
            report.splits.append({"backend": backend, "split": split, **figures(of_split)})
        report.kinds += kinds(backend, results)
        if names:
            report.problems += problems(backend, results)
    return report


def vocabulary_of(tokenizer: Path | None, vocab: int) -> Vocabulary:
    """Return the vocabulary of a folder with a tokenizer.json, or else one of `vocab` synthetic tokens."""
    return synthetic_vocabulary(vocab) if tokenizer is None else Vocabulary.from_huggingface(tokenizer)


def judge_all(settings: Settings, files: Sequence[SchemaFile], timeout_s: float, jobs: int) -> list[Result]:
    """Return the result of each file, in order."""
    mine, started = local(), []

    def judge(file: SchemaFile) -> Result:
        if not hasattr(mine, "process"):
            mine.process = JudgeProcess(settings, timeout_s)
            started.append(mine.process)
        result: Result = mine.process.judge(file)
        return result

    console = Console(stderr=True)
    try:
        with ThreadPoolExecutor(jobs) as pool:
            shown = track(
                pool.map(judge, files),
                settings.backend,
                total=len(files),
                console=console,
                disable=not console.is_terminal,
            )
            return list(shown)
    finally:
        for process in started:
            process.close()


def figures(results: Sequence[Result]) -> dict[str, Any]:
    """Return one row: shares in percent, compile times in ms, and mask and token times in us."""
    outcomes = Counter(result.outcome for result in results)
    compiled = [result.compiled for result in results if result.compiled is not None]
    walked = [result.walked for result in results if result.walked is not None]
    verdicts = [verdict for each in walked for verdict in each.verdicts]
    of_valid = [accepted for valid, accepted in verdicts if valid]
    of_invalid = [not accepted for valid, accepted in verdicts if not valid]
    fills = list(chain.from_iterable(each.fill_ns for each in walked))
    return {
        "schemas": len(results),
        "compiled_pct": share(len(compiled), len(results)),
        **{outcome: outcomes[outcome] for outcome in UNFINISHED},
        **spread("compile", "ms", [each.seconds * 1e3 for each in compiled], (50, 90, 99)),
        "compile_cpu_mean_ms": mean([each.cpu_seconds * 1e3 for each in compiled]),
        **spread("mask", "us", [ns * 1e-3 for ns in fills], (50, 99)),
        "mask_mean_us": mean([ns * 1e-3 for ns in fills]),
        **spread("accept", "us", [ns * 1e-3 for each in walked for ns in each.accept_ns], (50, 99)),
        **spread("matcher", "us", [ns * 1e-3 for each in walked for ns in each.matcher_ns], (50, 99)),
        "masks": len(fills),
        "valid_accepted_pct": share(sum(of_valid), len(of_valid)),
        "invalid_refused_pct": share(sum(of_invalid), len(of_invalid)),
        "valid": len(of_valid),
        "invalid": len(of_invalid),
        "unsaid": sum(map(num_unsaid, results)),
        "all_valid_accepted_pct": share(sum(map(takes_all_valid, results)), len(results)),
        "not_enforced": sum(each.num_ignored > 0 for each in compiled),
        "memory_mean_kb": mean([each.memory_bytes / 1024 for each in compiled]),
        "failed_instances": sum(len(each.errors) for each in walked),
        "mask_unlike_accept": sum(each.num_disagreements for each in walked),
    }


def takes_all_valid(result: Result) -> bool:
    """Whether the schema compiled and every valid instance was accepted."""
    return result.walked is not None and all(accepted for valid, accepted in result.walked.verdicts if valid)


def num_unsaid(result: Result) -> int:
    """Return the number of invalid instances that were accepted although all keywords are reported as enforced."""
    if result.walked is None or result.compiled is None or result.compiled.num_ignored:
        return 0
    return sum(accepted for valid, accepted in result.walked.verdicts if not valid)


def problems(backend: str, results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return a row for each file that did not compile, and for each instance with a wrong verdict."""
    return [
        {
            "backend": backend,
            "split": r.file.split,
            "name": r.file.name,
            "outcome": outcome,
            "text": text[:300],
        }
        for r in results
        for outcome, text in told(r)
    ]


def kinds(backend: str, results: Iterable[Result]) -> list[dict[str, Any]]:
    """Count the problems by kind, ignoring quoted text and numbers."""
    counts = Counter((outcome, kind_of(text)) for result in results for outcome, text in told(result))
    return [
        {"backend": backend, "outcome": outcome, "kind": kind, "count": count}
        for (outcome, kind), count in counts.most_common()
    ]


def told(result: Result) -> list[tuple[str, str]]:
    """Return the outcome of a file, unless it compiled, and its instances with wrong verdicts."""
    errors = result.walked.errors if result.walked is not None else []
    outcome = [(result.outcome, result.text)] if result.outcome != "compiled" else []
    return outcome + [("instance", text) for text in errors]


def kind_of(text: str) -> str:
    """Remove quoted text, locations and numbers, so that texts of the same kind are equal."""
    text = re.sub(r"at #\S*", "at #…", text)
    text = re.sub(r"'(\\.|[^'\\])*'|\"(\\.|[^\"\\])*\"|`[^`]*`", "'…'", text)
    return re.sub(r"[\[{].*[\]}]", "…", re.sub(r"\d+(\.\d+)?", "N", text), flags=re.DOTALL)[:120]


def share(part: int, whole: int) -> float | None:
    """Return `part` in percent of `whole`, or None if `whole` is 0."""
    return round(100 * part / whole, 2) if whole else None


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, or None if there are no values."""
    return float(np.mean(values)) if values else None


def spread(name: str, unit: str, values: Sequence[float], percents: Iterable[int]) -> dict[str, float | None]:
    """Return percentiles and the maximum, which are None if there are no values."""
    marks = {f"p{percent}": percent for percent in percents} | {"max": 100}
    return {
        f"{name}_{mark}_{unit}": float(np.percentile(values, percent)) if values else None
        for mark, percent in marks.items()
    }
