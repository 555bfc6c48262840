"""What a step of a WASM program costs as a guide, beside the same grammar as a native one.

Each step fills the mask, takes a token, takes it back and takes it again, as drafting does; calls are made from Python
and timed by the clock, since a program runs on a thread of its own. Two programs: the example of `docs/wasm.md`, which
looks at every token of the vocabulary in each step, and one that has the vocabulary in its memory and does nothing with
it, which is what the host costs.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from weft.bench.grammar import synthetic_vocabulary
from weft.bench.report import Report
from weft.config import package_model_path
from weft.errors import InputError
from weft.grammar import CompiledGuide, Guide, GuideCompiler, Vocabulary
from weft.grammar.wasm import wasm_undo_bytes

EXAMPLE = Path(__file__).parents[3] / "examples" / "wasm_digits.wat"

# Allows every token; its vocabulary is behind the first two pages.
IDLE = """(module
  (import "env" "aici_host_read_blob" (func $read (param i32 i32 i32) (result i32)))
  (import "env" "aici_host_process_arg" (func $process_arg (result i32)))
  (import "env" "aici_host_token_trie" (func $trie (result i32)))
  (import "env" "aici_host_return_logit_bias" (func $mask (param i32) (result i32)))
  (import "env" "aici_host_return_process_result" (func $result (param i32 i32)))
  (memory (export "memory") 2)
  (data (i32.const 0) "{\\22branches\\22:[{\\22sample_mask\\22:0000000000,\\22splices\\22:[]}]}")
  (func (export "aici_init"))
  (func (export "aici_create") (result i32) (local $size i32)
    (local.set $size (call $read (call $trie) (i32.const 0) (i32.const 0)))
    (if (i32.eq (i32.const -1) (memory.grow (i32.shr_u (i32.add (local.get $size) (i32.const 65535)) (i32.const 16))))
      (then unreachable))
    (drop (call $read (call $trie) (i32.const 131072) (local.get $size)))
    (memory.fill (i32.const 65536) (i32.const 255) (i32.const 65536))
    (i32.const 1))
  (func (export "aici_init_prompt") (param i32)
    (call $result (i32.const 1024) (call $read (call $process_arg) (i32.const 1024) (i32.const 8192))))
  (func (export "aici_mid_process") (param i32) (local $ticket i32) (local $at i32)
    (drop (call $read (call $process_arg) (i32.const 1024) (i32.const 8192)))
    (local.set $ticket (call $mask (i32.const 65536)))
    (local.set $at (i32.const 37))
    (loop $digit  ;; blanks before the number, as JSON allows
      (i32.store8 (local.get $at) (select
        (i32.add (i32.const 48) (i32.rem_u (local.get $ticket) (i32.const 10))) (i32.const 32) (local.get $ticket)))
      (local.set $ticket (i32.div_u (local.get $ticket) (i32.const 10)))
      (br_if $digit (i32.ge_u (local.tee $at (i32.sub (local.get $at) (i32.const 1))) (i32.const 28))))
    (call $result (i32.const 0) (i32.const 54))))
"""


def run(
    vocabs: Sequence[int] = (0, 32768, 131072),
    steps: int = 64,
    repeat: int = 12,
    program: Path | None = None,
) -> Report:
    """Microseconds of each call, p50 and p99 over `repeat` answers of `steps` digits; milliseconds of a start; KiB that
    a step keeps to be taken back. A row for each vocabulary (0: weft-tiny's) and guide. `program` gets the number of
    digits as its argument; by default it is the example of a checkout.
    """
    source = EXAMPLE if program is None else program
    if not source.is_file():
        raise InputError(f"there is no {source.name} here; run this in a checkout of weft, or give a program")
    regex = Guide.regex(f"[0-9]{{{steps}}}")
    rows = []
    for size in vocabs:
        vocabulary = synthetic_vocabulary(size) if size else Vocabulary.from_huggingface(package_model_path())
        guides = {
            "program, idle": Guide.wasm(IDLE.encode(), trusted=True),
            "program": Guide.wasm(source, str(steps), trusted=True),
            "xgrammar": regex,
            "llguidance": regex,
        }
        for name, guide in guides.items():
            backend = name if name in ("xgrammar", "llguidance") else "xgrammar"
            with GuideCompiler(vocabulary, backend=backend) as compiler:
                rows.append(row(name, compiler.compile(guide), vocabulary, steps, repeat))
    return Report("programs", rows, {"steps": steps, "repeat": repeat, "program": source.name})


def row(
    name: str, compiled: CompiledGuide, vocabulary: Vocabulary, steps: int, repeat: int
) -> dict[str, Any]:
    """One line of the report: a guide's calls over `repeat` answers, the first of which does not count."""
    times: dict[str, list[float]] = defaultdict(list)
    kept = 0.0
    for number in range(repeat + 1):
        if number == 1:
            times.clear()
        kept = answer(compiled, vocabulary, list(digits(vocabulary, steps, number)), times)
    figures: dict[str, Any] = {"vocab": vocabulary.vocab_size, "guide": name}
    figures["start_ms"] = statistics.median(times.pop("start")) * 1e3
    for call, taken in times.items():
        figures[f"{call}_p50_us"] = statistics.median(taken) * 1e6
        figures[f"{call}_p99_us"] = statistics.quantiles(taken, n=100)[98] * 1e6
    figures["undo_kib"] = kept / 1024
    return figures


def digits(vocabulary: Vocabulary, count: int, seed: int) -> Iterator[int]:
    """Random digits, each a token of its own."""
    ids = [vocabulary.tokens.index(b"%d" % digit) for digit in range(10)]
    return iter(random.Random(seed).choices(ids, k=count))


def answer(
    compiled: CompiledGuide, vocabulary: Vocabulary, tokens: Sequence[int], times: dict[str, list[float]]
) -> float:
    """Write one answer; the bytes that a step keeps (0 where that is not known)."""

    def timed(call: str, run: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = run()
        times[call].append(time.perf_counter() - start)
        return result

    matcher = timed("start", compiled.matcher)
    mask = np.zeros(-(-vocabulary.vocab_size // 32), dtype=np.int32)
    for token in tokens:
        timed("fill", partial(matcher.fill, mask))
        assert mask[token // 32] >> token % 32 & 1
        assert timed("accept", partial(matcher.accept, token))
        timed("rollback", matcher.rollback)
        assert timed("accept", partial(matcher.accept, token))
    return wasm_undo_bytes(matcher) / len(tokens)
