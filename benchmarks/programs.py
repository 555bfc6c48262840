"""Measures a step of a WASM program as a guide, against the same grammar as a native guide.

    .venv/bin/python benchmarks/programs.py --help

Each step fills the mask, accepts a token, rolls it back and accepts it again, as drafting does. The calls are made
from Python and timed in wall time, because a program runs on its own thread. There are two programs. The example of
`docs/wasm.md` reads every token of the vocabulary in each step. An idle program has the vocabulary in its memory,
which shows the host's cost. Another program may replace the example, without a native guide to compare.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from weft.aici import wasm_undo_bytes
from weft.config import package_model_path
from weft.errors import InputError
from weft.grammar import CompiledGuide, Guide, GuideCompiler, Vocabulary
from weft_bench.cli.app import OutOption, finish, measured, script
from weft_bench.report import Report
from weft_bench.vocabulary import synthetic_vocabulary

NAME = "wasm_digits.wat"
Tokens = NDArray[np.uint8]

# A program that allows every token. The vocabulary follows the first two pages of its memory.
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
    arg: str | None = None,
) -> Report:
    """Return a row for each vocabulary (0 is weft-tiny's) and guide: the microseconds of each call, p50 and p99 over
    `repeat` answers of `steps` tokens; the milliseconds of a start; and the KiB that a step keeps for rollback.

    The example writes `steps` digits. A `program` with its `arg` (default: the number of steps) accepts random
    tokens from its masks until it ends. Raises `InputError` if the program is missing or ends at once.
    """
    source = example() if program is None else program
    if not source.is_file():
        raise InputError(f"there is no {source.name} here; give the path of a program")
    regex = Guide.regex(f"[0-9]{{{steps}}}")
    argument = str(steps) if arg is None else arg
    rows = []
    for size in vocabs:
        vocabulary = synthetic_vocabulary(size) if size else Vocabulary.from_huggingface(package_model_path())
        guides = {
            "program, idle": Guide.wasm(IDLE.encode(), trusted=True),
            "program": Guide.wasm(source, argument, trusted=True),
        }
        if program is None:
            guides |= {"xgrammar": regex, "llguidance": regex}
        among = digits(vocabulary) if program is None else texts(vocabulary)
        for name, guide in guides.items():
            backend = name if name in ("xgrammar", "llguidance") else "xgrammar"
            with GuideCompiler(vocabulary, backend=backend) as compiler:
                rows.append(row(name, compiler.compile(guide), vocabulary, among, steps, repeat))
    return Report("programs", rows, {"steps": steps, "repeat": repeat, "program": source.name})


def example() -> Path:
    """Return the path of the program in `docs/wasm.md`."""
    return Path(__file__).parents[1] / "examples" / NAME


def row(
    name: str, compiled: CompiledGuide, vocabulary: Vocabulary, among: Tokens, steps: int, repeat: int
) -> dict[str, Any]:
    """Return a row of the report: the calls of a guide over `repeat` answers. A first answer does not count."""
    times: dict[str, list[float]] = defaultdict(list)
    kept = 0.0
    for number in range(repeat + 1):
        if number == 1:
            times.clear()
        kept = answer(compiled, among, steps, number, times)
    figures: dict[str, Any] = {"vocab": vocabulary.vocab_size, "guide": name}
    figures["start_ms"] = statistics.median(times.pop("start")) * 1e3
    for call, taken in times.items():
        figures[f"{call}_p50_us"] = statistics.median(taken) * 1e6
        figures[f"{call}_p99_us"] = float(np.percentile(taken, 99)) * 1e6
    figures["undo_kib"] = kept / 1024
    return figures


def digits(vocabulary: Vocabulary) -> Tokens:
    """Return uint8 [vocab], with 1 for the tokens of the ten digits."""
    return chosen(vocabulary, [vocabulary.tokens.index(b"%d" % digit) for digit in range(10)])


def texts(vocabulary: Vocabulary) -> Tokens:
    """Return uint8 [vocab], with 1 for each token that has bytes and does not end a text."""
    apart = vocabulary.special_ids | set(vocabulary.end_ids)
    return chosen(vocabulary, [i for i, token in enumerate(vocabulary.tokens) if token and i not in apart])


def chosen(vocabulary: Vocabulary, ids: Sequence[int]) -> Tokens:
    among = np.zeros(vocabulary.vocab_size, dtype=np.uint8)
    among[ids] = 1
    return among


def answer(
    compiled: CompiledGuide, among: Tokens, steps: int, seed: int, times: dict[str, list[float]]
) -> float:
    """Write an answer of at most `steps` random tokens, chosen from those that the mask allows and `among` contains.
    Returns the bytes that a step keeps (0 if unknown)."""

    def timed(call: str, run: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = run()
        times[call].append(time.perf_counter() - start)
        return result

    rng = random.Random(seed)
    matcher = timed("start", compiled.matcher)
    mask = np.zeros(-(-len(among) // 32), dtype=np.int32)
    for step in range(steps):
        timed("fill", partial(matcher.fill, mask))
        allowed = np.unpackbits(mask.view(np.uint8), bitorder="little", count=len(among)) & among
        if not allowed.any():
            if step:
                return wasm_undo_bytes(matcher) / step
            raise InputError(
                "the program allows no text at its start; give it an argument with which it does"
            )
        take = partial(matcher.accept, rng.choice(allowed.nonzero()[0].tolist()))
        for call, run in (("accept", take), ("rollback", matcher.rollback), ("accept", take)):
            if timed(call, run) is False:
                raise InputError(f"the program refuses a token that its mask allows, in step {step}")
    return wasm_undo_bytes(matcher) / steps


def main(
    program: Annotated[
        Path | None,
        typer.Argument(
            help="A program; it takes random tokens that its masks allow. Default: the example, which writes digits."
        ),
    ] = None,
    arg: Annotated[str | None, typer.Option(help="Its argument. Default: the number of steps.")] = None,
    vocabs: Annotated[
        str, typer.Option(help="Numbers of tokens, made up; 0: weft-tiny's own.")
    ] = "0,32768,131072",
    steps: Annotated[int, typer.Option(min=1, help="Tokens of an answer, at most.")] = 64,
    repeat: Annotated[int, typer.Option(min=1, help="Answers.")] = 12,
    out: OutOption = None,
) -> None:
    """Steps of WASM programs as guides, compared with the same grammar as a native guide."""
    report = measured(
        out, lambda: run([int(size) for size in vocabs.split(",")], steps, repeat, program, arg)
    )
    finish(report, out)


if __name__ == "__main__":
    script(main)
