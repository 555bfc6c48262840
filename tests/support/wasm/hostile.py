"""Helpers to write malicious programs: their imports, and the step in which they turn malicious."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from support.wasm.programs import IMPORTS, PROMPT, START, program, quoted

When = Literal["compile", "start", "step"]

MORE = """
 (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
 (import "wasi_snapshot_preview1" "path_open"
   (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "fd_fdstat_get" (func $fdstat (param i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "args_sizes_get" (func $args (param i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
"""
ALLOWED = 100  # the token that they allow before that: "a" of the small vocabulary
ENV = '(import "env" '
EXPORTS = f'{START} {PROMPT} (func (export "aici_mid_process") (param i32))'

# Allows the token ALLOWED. The mask is at address 256, the result at 512.
SAMPLE = f"""
 (func $sample
   (i32.store (i32.const {256 + ALLOWED // 32 * 4}) (i32.const {1 << ALLOWED % 32}))
   (call $answer))
 (func $answer (local $at i32)
   (memory.copy (i32.const 512) (i32.const 600) (i32.const 28))
   (local.set $at (call $put (i32.const 540) (call $bias (i32.const 256))))
   (i32.store8 (local.get $at) (i32.const 0x7d))
   (i32.store16 offset=1 (local.get $at) (i32.const 0x7d5d))
   (call $result (i32.const 512) (i32.sub (local.get $at) (i32.const 509))))
 (data (i32.const 600) "{quoted('{"branches":[{"sample_mask":')}")"""


@dataclass(frozen=True)
class Hostile:
    """A malicious program. `error` is a part of the error message that it causes."""

    name: str
    text: str | bytes
    when: When
    error: str
    limits: dict[str, Any]


def step(body: str, extra: str = "") -> str:
    """A program that first allows a token, and runs `body` in the next step."""
    turned = f"""(global.set $step (i32.add (global.get $step) (i32.const 1)))
      (if (i32.gt_u (global.get $step) (i32.const 1)) (then {body}))
      (call $sample)"""
    return program(turned, SAMPLE + extra, imports=MORE + IMPORTS)


def begin(body: str, extra: str = "", start: str = "") -> str:
    """A program that runs `body` in aici_create."""
    create = f"""(func (export "aici_init")) (func (export "aici_create") (result i32) {body} (i32.const 1)) {start}"""
    return program("(call $sample)", SAMPLE + extra, create, MORE + IMPORTS)


def module(head: str, exports: str = EXPORTS) -> str:
    """A complete module with the given parts."""
    return f"(module {head} {exports})"


RESULT = '(import "env" "aici_host_return_process_result" (func $result (param i32 i32)))'
READ = """(import "env" "aici_host_read_blob" (func $read (param i32 i32 i32) (result i32)))
 (import "env" "aici_host_process_arg" (func $process_arg (result i32)))"""
MEMORY = '(memory (export "memory") 2)'


def hostile(name: str, text: str | bytes, when: When, error: str, **limits: Any) -> Hostile:
    """Make a `Hostile` with its limits by name."""
    return Hostile(name, text, when, error, limits)
