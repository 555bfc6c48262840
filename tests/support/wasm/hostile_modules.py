"""Modules that are refused when they are compiled: what they import, what they hold, what they are not."""

from __future__ import annotations

from support.wasm.hostile_parts import (
    BASE,
    ENV,
    EXPORTS,
    MEMORY,
    READ,
    RESULT,
    Hostile,
    hostile,
    module,
    step,
)
from support.wasm.programs import PROMPT, START

MODULES: list[Hostile] = [
    # what is imported
    hostile(
        "socket",
        module(
            f'(import "wasi_snapshot_preview1" "sock_accept" (func (param i32 i32 i32) (result i32))) {BASE}'
        ),
        "compile",
        "imports wasi_snapshot_preview1.sock_accept",
    ),
    hostile(
        "thread spawn",
        module(f'(import "wasi" "thread-spawn" (func (param i32) (result i32))) {BASE}'),
        "compile",
        "imports wasi.thread-spawn",
    ),
    hostile(
        "unknown host function",
        module(f'{ENV} "aici_host_exec" (func (param i32))) {BASE}'),
        "compile",
        "imports env.aici_host_exec",
    ),
    hostile(
        "imported memory",
        module(f'{RESULT} {READ} {ENV} "memory" (memory 1)) (export "memory" (memory 0))'),
        "compile",
        "imports the memory env.memory",
    ),
    hostile(
        "imported table",
        module(f'{ENV} "table" (table 1 funcref)) {BASE}'),
        "compile",
        "imports the table env.table",
    ),
    hostile(
        "imported global",
        module(f'{ENV} "stack" (global (mut i32))) {BASE}'),
        "compile",
        "imports the global env.stack",
    ),
    hostile(
        "host function of another type",
        module(f'{ENV} "aici_host_stop" (func (param i64))) {BASE}'),
        "compile",
        r"imports env.aici_host_stop as \(I:\)",
    ),
    # what a copy of memory and globals would miss, and what is not plain wasm32
    hostile(
        "shared memory",
        module(BASE.replace(MEMORY, '(memory (export "memory") 1 2 shared)')),
        "compile",
        "shared between threads",
    ),
    hostile(
        "64-bit memory",
        module(BASE.replace(MEMORY, '(memory (export "memory") i64 2)')),
        "compile",
        "64-bit addresses",
    ),
    hostile("two memories", module(f"{BASE} (memory 1)"), "compile", "has 2 memories"),
    hostile("passive data", module(f'{BASE} (data "x")'), "compile", "passive data segment"),
    hostile(
        "passive elements",
        module(f"{BASE} (table 1 funcref) (elem func 0)"),
        "compile",
        "passive element segment",
    ),
    hostile(
        "declared elements", module(f"{BASE} (elem declare func 0)"), "compile", "passive element segment"
    ),
    hostile(
        "table.copy",
        step("(table.copy (i32.const 0) (i32.const 1) (i32.const 1))", "(table 2 funcref)"),
        "compile",
        "table.copy",
    ),
    hostile(
        "table.set",
        step("(table.set (i32.const 0) (ref.null func))", "(table 2 funcref)"),
        "compile",
        "changes a table",
    ),
    hostile(
        "table.grow",
        step("(drop (table.grow (ref.null func) (i32.const 1)))", "(table 2 funcref)"),
        "compile",
        "table.grow",
    ),
    hostile("exceptions", module(f"{BASE} (tag (param i32))"), "compile", "section of kind 13"),
    hostile(
        "reference global",
        module(f"{BASE} (global (mut funcref) (ref.null func))"),
        "compile",
        "is a reference",
    ),
    hostile(
        "weft's own name",
        module(f'{BASE} (global (export "weft_global_0") (mut i32) (i32.const 0))'),
        "compile",
        "weft's own",
    ),
    # what is no program
    hostile(
        "generation 1",
        module(BASE, EXPORTS + '(func (export "aici_post_process") (param i32))'),
        "compile",
        "generation 1",
    ),
    hostile(
        "second draft", module(BASE, '(func (export "aici_process") (param i32))'), "compile", "second draft"
    ),
    hostile(
        "first draft",
        module(BASE, '(func (export "aici_append_token") (param i32 i32))'),
        "compile",
        "first draft",
    ),
    hostile(
        "no memory exported",
        module(BASE.replace('(export "memory")', "")),
        "compile",
        "must export its memory",
    ),
    hostile(
        "memory that is a function",
        module(BASE.replace('(export "memory")', "") + '(export "memory" (func 0))'),
        "compile",
        "must export its memory",
    ),
    hostile(
        "no step",
        module(BASE, f"{START} {PROMPT}"),
        "compile",
        "does not export the function aici_mid_process",
    ),
    hostile(
        "step of another type",
        module(BASE, EXPORTS.replace("(param i32))", "(param i64))")),
        "compile",
        "it must be",
    ),
    hostile("not WASM", b"\x7fELF\x02\x01\x01", "compile", "neither a WASM module nor its text"),
    hostile("component", b"\0asm\x0d\0\1\0", "compile", "a component is none"),
    hostile("garbage", b"\0asm\1\0\0\0garbage!", "compile", "WASM module"),
    hostile("cut short", b"\0asm\1\0\0\0\1\xff\xff\xff\xff\x0f", "compile", "cut short"),
    hostile("endless number", b"\0asm\1\0\0\0\1\xff\xff\xff\xff\xff\xff\xff", "compile", "too long"),
    hostile("a billion imports", b"\0asm\1\0\0\0\2\x05\xff\xff\xff\xff\x0f", "compile", "cut short"),
    hostile(
        "invalid code", module(f"{BASE} (func (result i32) (i64.const 1))"), "compile", "does not compile"
    ),
    hostile(
        "large module",
        module(f'{BASE} (data (i32.const 0) "{"x" * 9000}")'),
        "compile",
        "the 4096 bytes",
        module_bytes=4096,
    ),
    hostile(
        "4 GiB of memory",
        module(BASE.replace(MEMORY, '(memory (export "memory") 65536)')),
        "compile",
        "memory begins with",
    ),
    hostile(
        "large table", module(f"{BASE} (table 10000000 funcref)"), "compile", "table has 10000000 elements"
    ),
]
