"""Programs that mean harm, each in WebAssembly's text: what they try, when that shows, and what the error says."""

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
ALLOWED = 100  # what the programs allow until they turn hostile: "a" of the small vocabulary
ENV = '(import "env" '
EXPORTS = f'{START} {PROMPT} (func (export "aici_mid_process") (param i32))'

# Allows ALLOWED: the mask at 256, the answer at 512.
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
    """One program; `error` is what its error says."""

    name: str
    text: str | bytes
    when: When
    error: str
    limits: dict[str, Any]


HOSTILE: list[Hostile] = []


def add(name: str, text: str | bytes, when: When, error: str, **limits: Any) -> None:
    HOSTILE.append(Hostile(name, text, when, error, limits))


def step(body: str, extra: str = "") -> str:
    """A program that allows a token first, and then runs `body`."""
    turned = f"""(global.set $step (i32.add (global.get $step) (i32.const 1)))
      (if (i32.gt_u (global.get $step) (i32.const 1)) (then {body}))
      (call $sample)"""
    return program(turned, SAMPLE + extra, imports=MORE + IMPORTS)


def begin(body: str, extra: str = "", start: str = "") -> str:
    """A program that runs `body` in aici_create."""
    create = f"""(func (export "aici_init")) (func (export "aici_create") (result i32) {body} (i32.const 1)) {start}"""
    return program("(call $sample)", SAMPLE + extra, create, MORE + IMPORTS)


def answers(text: str, extra: str = "") -> str:
    """A program whose second answer is `text`."""
    size = len(text.encode())
    return step(
        f"(call $result (i32.const 70000) (i32.const {size})) (return)",
        f'(data (i32.const 70000) "{quoted(text)}") {extra}',
    )


def module(head: str, exports: str = EXPORTS) -> str:
    """A whole program with something of its own."""
    return f"(module {head} {exports})"


def expect(value: int, call: str) -> str:
    """Goes on only if a call gives `value`."""
    return f"(if (i32.ne (i32.const {value}) {call}) (then unreachable))"


RESULT = '(import "env" "aici_host_return_process_result" (func $result (param i32 i32)))'
READ = """(import "env" "aici_host_read_blob" (func $read (param i32 i32 i32) (result i32)))
 (import "env" "aici_host_process_arg" (func $process_arg (result i32)))"""
MEMORY = '(memory (export "memory") 2)'
BASE = f"{RESULT} {READ} {MEMORY}"

# -- what the host does for a step
LARGE = 960  # pages of memory, 60 MiB


def large(body: str) -> str:
    """A program with a memory of LARGE pages and a local $i that allows a token first, and then runs `body`."""
    text = step(body).replace(MEMORY, f'(memory (export "memory") {LARGE})')
    return text.replace("(param i32) (global.set", "(param i32) (local $i i32) (global.set")


STEP_MS = "25 ms for one step; raise step_ms to allow it"
add(
    "writes 40 MB",
    large("(memory.fill (i32.const 131072) (global.get $step) (i32.const 41943040))"),
    "step",
    STEP_MS,
)
add(
    "writes a byte of each page",
    large(
        """(local.set $i (i32.const 131072))
        (loop $page (i32.store8 (local.get $i) (global.get $step))
          (br_if $page (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 4096))) (i32.const 62910464))))"""
    ),
    "step",
    STEP_MS,
)
add(
    "writes 7 million empty words",
    large("(drop (call $write (i32.const 1) (i32.const 131072) (i32.const 7000000) (i32.const 1032)))"),
    "step",
    "5 ms for one step; raise step_ms to allow it",
    step_ms=5,  # a fast machine reads them in less than the default's 25
)
add(
    "wants a megabyte tokenized",
    large(
        """(memory.fill (i32.const 131072) (i32.const 97) (i32.const 1048000))
        (drop (call $tokenize (i32.const 131072) (i32.const 1048000)))"""
    ),
    "step",
    STEP_MS,
)

# -- what is imported
add(
    "socket",
    module(f'(import "wasi_snapshot_preview1" "sock_accept" (func (param i32 i32 i32) (result i32))) {BASE}'),
    "compile",
    "imports wasi_snapshot_preview1.sock_accept",
)
add(
    "thread spawn",
    module(f'(import "wasi" "thread-spawn" (func (param i32) (result i32))) {BASE}'),
    "compile",
    "imports wasi.thread-spawn",
)
add(
    "unknown host function",
    module(f'{ENV} "aici_host_exec" (func (param i32))) {BASE}'),
    "compile",
    "imports env.aici_host_exec",
)
add(
    "imported memory",
    module(f'{RESULT} {READ} {ENV} "memory" (memory 1)) (export "memory" (memory 0))'),
    "compile",
    "imports the memory env.memory",
)
add(
    "imported table",
    module(f'{ENV} "table" (table 1 funcref)) {BASE}'),
    "compile",
    "imports the table env.table",
)
add(
    "imported global",
    module(f'{ENV} "stack" (global (mut i32))) {BASE}'),
    "compile",
    "imports the global env.stack",
)
add(
    "host function of another type",
    module(f'{ENV} "aici_host_stop" (func (param i64))) {BASE}'),
    "compile",
    r"imports env.aici_host_stop as \(I:\)",
)

# -- what a copy of memory and globals would miss, and what is not plain wasm32
add(
    "shared memory",
    module(BASE.replace(MEMORY, '(memory (export "memory") 1 2 shared)')),
    "compile",
    "shared between threads",
)
add(
    "64-bit memory",
    module(BASE.replace(MEMORY, '(memory (export "memory") i64 2)')),
    "compile",
    "64-bit addresses",
)
add("two memories", module(f"{BASE} (memory 1)"), "compile", "has 2 memories")
add("passive data", module(f'{BASE} (data "x")'), "compile", "passive data segment")
add(
    "passive elements",
    module(f"{BASE} (table 1 funcref) (elem func 0)"),
    "compile",
    "passive element segment",
)
add("declared elements", module(f"{BASE} (elem declare func 0)"), "compile", "passive element segment")
add(
    "table.copy",
    step("(table.copy (i32.const 0) (i32.const 1) (i32.const 1))", "(table 2 funcref)"),
    "compile",
    "table.copy",
)
add(
    "table.set",
    step("(table.set (i32.const 0) (ref.null func))", "(table 2 funcref)"),
    "compile",
    "changes a table",
)
add(
    "table.grow",
    step("(drop (table.grow (ref.null func) (i32.const 1)))", "(table 2 funcref)"),
    "compile",
    "table.grow",
)
add("exceptions", module(f"{BASE} (tag (param i32))"), "compile", "section of kind 13")
add("reference global", module(f"{BASE} (global (mut funcref) (ref.null func))"), "compile", "is a reference")
add(
    "weft's own name",
    module(f'{BASE} (global (export "weft_global_0") (mut i32) (i32.const 0))'),
    "compile",
    "weft's own",
)

# -- what is no program
add(
    "generation 1",
    module(BASE, EXPORTS + '(func (export "aici_post_process") (param i32))'),
    "compile",
    "generation 1",
)
add("second draft", module(BASE, '(func (export "aici_process") (param i32))'), "compile", "second draft")
add(
    "first draft",
    module(BASE, '(func (export "aici_append_token") (param i32 i32))'),
    "compile",
    "first draft",
)
add("no memory exported", module(BASE.replace('(export "memory")', "")), "compile", "must export its memory")
add(
    "memory that is a function",
    module(BASE.replace('(export "memory")', "") + '(export "memory" (func 0))'),
    "compile",
    "must export its memory",
)
add("no step", module(BASE, f"{START} {PROMPT}"), "compile", "does not export the function aici_mid_process")
add(
    "step of another type",
    module(BASE, EXPORTS.replace("(param i32))", "(param i64))")),
    "compile",
    "it must be",
)
add("not WASM", b"\x7fELF\x02\x01\x01", "compile", "neither a WASM module nor its text")
add("component", b"\0asm\x0d\0\1\0", "compile", "a component is none")
add("garbage", b"\0asm\1\0\0\0garbage!", "compile", "WASM module")
add("cut short", b"\0asm\1\0\0\0\1\xff\xff\xff\xff\x0f", "compile", "cut short")
add("endless number", b"\0asm\1\0\0\0\1\xff\xff\xff\xff\xff\xff\xff", "compile", "too long")
add("a billion imports", b"\0asm\1\0\0\0\2\x05\xff\xff\xff\xff\x0f", "compile", "cut short")
add("invalid code", module(f"{BASE} (func (result i32) (i64.const 1))"), "compile", "does not compile")
add(
    "large module",
    module(f'{BASE} (data (i32.const 0) "{"x" * 9000}")'),
    "compile",
    "the 4096 bytes",
    module_bytes=4096,
)
add(
    "4 GiB of memory",
    module(BASE.replace(MEMORY, '(memory (export "memory") 65536)')),
    "compile",
    "memory begins with",
)
add("large table", module(f"{BASE} (table 10000000 funcref)"), "compile", "table has 10000000 elements")

# -- what it does when it starts
SPIN = "(loop $spin (br $spin))"
add("endless start function", begin("", f"(func $s {SPIN}) (start $s)"), "start", "50 ms", start_ms=50)
add(
    "endless aici_init",
    begin("", start="").replace('"aici_init"))', f'"aici_init") {SPIN})'),
    "start",
    "50 ms",
    start_ms=50,
)
add("endless aici_create", begin(SPIN), "start", "50 ms", start_ms=50)
add("start function that traps", begin("", "(func $s unreachable) (start $s)"), "start", "ends it")
add("stack bomb", begin("(call $r)", "(func $r (call $r))"), "start", "stack is over")
add(
    "stack bomb of wide frames",
    begin(
        "(call $r (i64.const 1))", "(func $r (param i64)" + "(local i64)" * 500 + "(call $r (local.get 0)))"
    ),
    "start",
    "stack is over",
)
add("stops itself", begin("(call $stop)"), "start", "stopped itself")
add("exits", begin("(call $exit (i32.const 1))"), "start", "stopped itself")
add(
    "eats its memory and uses it",
    begin(
        "(loop $more (br_if $more (i32.ne (i32.const -1) (memory.grow (i32.const 1)))))"
        "(i32.store (i32.mul (memory.size) (i32.const 65536)) (i32.const 1))"
    ),
    "start",
    "memory that it does not have",
)
add(
    "another prompt",
    program("(call $sample)", SAMPLE, imports=MORE + IMPORTS).replace(
        PROMPT,
        f"""(data (i32.const 70000) "{quoted('{"prompt":[7,7,7]}')}") (func (export "aici_init_prompt") (param i32)
    (call $result (i32.const 70000) (i32.const 18)))""",
    ),
    "start",
    "another prompt",
)
add(
    "no answer to the prompt",
    program("(call $sample)", SAMPLE, imports=MORE + IMPORTS).replace(
        PROMPT, '(func (export "aici_init_prompt") (param i32))'
    ),
    "start",
    "gave no result",
)

# -- what it does in a step
add("endless loop", step(SPIN), "step", "25 ms")
add("endless recursion", step("(call $r)", "(func $r (call $r))"), "step", "stack is over")
add("endless calls of the host", step("(loop $spin (drop (call $seq)) (br $spin))"), "step", "25 ms")
add("division by zero", step("(drop (i32.div_u (i32.const 1) (i32.const 0)))"), "step", "divided by zero")
add("overflow", step("(drop (i32.div_s (i32.const 0x80000000) (i32.const -1)))"), "step", "overflow")
add(
    "memory out of bounds",
    step("(drop (i32.load offset=0xfffffff0 (i32.const -1)))"),
    "step",
    "does not have",
)
add(
    "call of nothing",
    step("(call_indirect (param i32) (i32.const 0) (i32.const 1))", "(table 2 funcref)"),
    "step",
    "there is none",
)
add(
    "call of another type",
    step(
        "(call_indirect (result i64) (i32.const 0)) (drop)", "(table 1 funcref) (elem (i32.const 0) $sample)"
    ),
    "step",
    "another type",
)
add("call beyond the table", step("(call_indirect (i32.const -1))", "(table 2 funcref)"), "step", "table")
add("panic", step("unreachable"), "step", "ends it")

# -- pointers into the host
BAD = {
    "mask at the end": "(drop (call $bias (i32.const 131069)))",
    "mask that wraps": "(drop (call $bias (i32.const -4)))",
    "blob beyond the end": "(drop (call $read (call $trie) (i32.const 131000) (i32.const -1)))",
    "blob that wraps": "(drop (call $read (call $trie) (i32.const -8) (i32.const 100)))",
    "unknown blob": "(drop (call $read (i32.const 99) (i32.const 0) (i32.const 4)))",
    "result that wraps": "(call $result (i32.const -8) (i32.const 64))",
    "result of 4 GiB": "(call $result (i32.const 0) (i32.const -1))",
    "tokenize beyond the end": "(drop (call $tokenize (i32.const 131070) (i32.const 4096)))",
    "tokenize of 4 GiB": "(drop (call $tokenize (i32.const 0) (i32.const -1)))",
    "command beyond the end": "(drop (call $storage (i32.const 131070) (i32.const 100)))",
    "name of 4 GiB": "(drop (call $config (i32.const 0) (i32.const -1)))",
    "texts that wrap": "(drop (call $write (i32.const 1) (i32.const 0) (i32.const 536870912) (i32.const 0)))",
    "text that wraps": """(i32.store (i32.const 0) (i32.const -4)) (i32.store (i32.const 4) (i32.const 64))
      (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 32)))""",
    "written count at the end": """(i32.store (i32.const 0) (i32.const 0)) (i32.store (i32.const 4) (i32.const 1))
      (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 131071)))""",
    "time at the end": "(drop (call $clock (i32.const 1) (i64.const 0) (i32.const 131070)))",
    "arguments at the end": "(drop (call $args (i32.const 131070) (i32.const 0)))",
    "file status at the end": "(drop (call $fdstat (i32.const 1) (i32.const 131070)))",
}
for name, body in BAD.items():
    add(
        f"pointer: {name}",
        step(body),
        "step",
        "blob 99" if "99" in body else "pointer that leaves its memory",
    )

# -- answers
for name, (text, said) in {
    "empty": ("", "ends too early"),
    "no JSON": ("all right", "unexpected character"),
    "cut": ('{"branches":[{"sample_', "ends too early"),
    "a list": ("[]", "has no branches"),
    "no branches": ("{}", "has no branches"),
    "branches of numbers": ('{"branches":[1,2]}', "branches that are no list"),
    "two branches": ('{"branches":[{"sample_mask":0},{"sample_mask":0}]}', "forks"),
    "mask of another call": ('{"branches":[{"sample_mask":0,"splices":[]}]}', "mask that it did not return"),
    "mask that is a text": ('{"branches":[{"sample_mask":"0"}]}', "sample_mask that is no number"),
    "neither mask nor tokens": ('{"branches":[{"sample_mask":null,"splices":[]}]}', "neither samples"),
    "token beyond the vocabulary": (
        '{"branches":[{"splices":[{"when_sampled":[],"backtrack":0,"ff_tokens":[300]}]}]}',
        "not a token",
    ),
    "token below zero": (
        '{"branches":[{"splices":[{"when_sampled":[],"backtrack":0,"ff_tokens":[-1]}]}]}',
        "not a token",
    ),
    "token that is huge": (
        '{"branches":[{"splices":[{"when_sampled":[],"backtrack":0,"ff_tokens":[1e300]}]}]}',
        "not a token",
    ),
    "token that is half": (
        '{"branches":[{"splices":[{"when_sampled":[],"backtrack":0,"ff_tokens":[0.5]}]}]}',
        "not a token",
    ),
    "backtrack of all": (
        '{"branches":[{"splices":[{"when_sampled":[],"backtrack":1000000,"ff_tokens":[100]}]}]}',
        "takes back more",
    ),
    "backtrack below zero": (
        '{"branches":[{"splices":[{"when_sampled":[],"backtrack":-1,"ff_tokens":[100]}]}]}',
        "takes back more",
    ),
    "nested JSON": ('{"branches":' + "[" * 50_000, "nests too deep"),
    "nested objects": ('{"a":' * 10_000, "nests too deep"),
}.items():
    add(f"answer: {name}", answers(text), "step", said)
add(
    "answer: too long",
    answers('{"branches":[],"x":"' + "x" * 4000 + '"}'),
    "step",
    "more than 2048",
    result_bytes=2048,
)
EMPTY = f"(i32.store (i32.const {256 + ALLOWED // 32 * 4}) (i32.const 0))"
add("answer: empty mask", step(f"{EMPTY} (call $answer) (return)"), "step", "allows no token")
add(
    "answer: mask of padding",
    step(f"{EMPTY} (i32.store (i32.const 292) (i32.const 0xfffff000)) (call $answer) (return)"),
    "step",
    "allows no token",
)
add(
    "answer: mask of an invented call",
    answers('{"branches":[{"sample_mask":12345}]}').replace(
        "(call $result (i32.const 70000)",
        "(drop (call $bias (i32.const 256))) (call $result (i32.const 70000)",
    ),
    "step",
    "mask that it did not return",
)
add("answer: none", step("(return)"), "step", "gave no result")
