"""Programs that mean harm are refused, or stopped within their limits, with an error that says why."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from support.grammar.grammars import allowed, new_row, small_vocabulary
from support.wasm.hostile import (
    ALLOWED,
    ENV,
    EXPORTS,
    MEMORY,
    MORE,
    READ,
    RESULT,
    SAMPLE,
    Hostile,
    begin,
    hostile,
    module,
    step,
)
from support.wasm.programs import IMPORTS, PROMPT, START, program, quoted
from weft import GuideError, GuideStateError
from weft.aici import WasmLimits, wasm_logs
from weft.aici.guide import compile_wasm
from weft.grammar import Guide, Matcher, Opening
from weft.grammar.base import CompiledGuide


def answers(text: str, extra: str = "") -> str:
    """A program whose second answer is `text`."""
    size = len(text.encode())
    return step(
        f"(call $result (i32.const 70000) (i32.const {size})) (return)",
        f'(data (i32.const 70000) "{quoted(text)}") {extra}',
    )


def expect(value: int, call: str) -> str:
    """Goes on only if a call gives `value`."""
    return f"(if (i32.ne (i32.const {value}) {call}) (then unreachable))"


BASE = f"{RESULT} {READ} {MEMORY}"


# -- Modules that are refused when they are compiled: what they import, what they hold, what they are not

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


# -- Programs that turn hostile when they start or in a step: what they ask of the host, run, and point to

LARGE = 960  # pages of memory, 60 MiB


def large(body: str) -> str:
    """A program with a memory of LARGE pages and a local $i that allows a token first, and then runs `body`."""
    text = step(body).replace(MEMORY, f'(memory (export "memory") {LARGE})')
    return text.replace("(param i32) (global.set", "(param i32) (local $i i32) (global.set")


STEP_MS = "25 ms for one step; raise step_ms to allow it"
SPIN = "(loop $spin (br $spin))"
POINTERS = {
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
RUNS: list[Hostile] = [
    # what the host does for a step
    hostile(
        "writes 40 MB",
        large("(memory.fill (i32.const 131072) (global.get $step) (i32.const 41943040))"),
        "step",
        STEP_MS,
    ),
    hostile(
        "writes a byte of each page",
        large(
            """(local.set $i (i32.const 131072))
        (loop $page (i32.store8 (local.get $i) (global.get $step))
          (br_if $page (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 4096))) (i32.const 62910464))))"""
        ),
        "step",
        STEP_MS,
    ),
    hostile(
        "writes 7 million empty words",
        large("(drop (call $write (i32.const 1) (i32.const 131072) (i32.const 7000000) (i32.const 1032)))"),
        "step",
        "5 ms for one step; raise step_ms to allow it",
        step_ms=5,  # a fast machine reads them in less than the default's 25
    ),
    hostile(
        "wants a megabyte tokenized",
        large(
            """(memory.fill (i32.const 131072) (i32.const 97) (i32.const 1048000))
        (drop (call $tokenize (i32.const 131072) (i32.const 1048000)))"""
        ),
        "step",
        STEP_MS,
    ),
    # what it does when it starts
    hostile(
        "endless start function", begin("", f"(func $s {SPIN}) (start $s)"), "start", "50 ms", start_ms=50
    ),
    hostile(
        "endless aici_init",
        begin("", start="").replace('"aici_init"))', f'"aici_init") {SPIN})'),
        "start",
        "50 ms",
        start_ms=50,
    ),
    hostile("endless aici_create", begin(SPIN), "start", "50 ms", start_ms=50),
    hostile("start function that traps", begin("", "(func $s unreachable) (start $s)"), "start", "ends it"),
    hostile("stack bomb", begin("(call $r)", "(func $r (call $r))"), "start", "stack is over"),
    hostile(
        "stack bomb of wide frames",
        begin(
            "(call $r (i64.const 1))",
            "(func $r (param i64)" + "(local i64)" * 500 + "(call $r (local.get 0)))",
        ),
        "start",
        "stack is over",
    ),
    hostile("stops itself", begin("(call $stop)"), "start", "stopped itself"),
    hostile("exits", begin("(call $exit (i32.const 1))"), "start", "stopped itself"),
    hostile(
        "eats its memory and uses it",
        begin(
            "(loop $more (br_if $more (i32.ne (i32.const -1) (memory.grow (i32.const 1)))))"
            "(i32.store (i32.mul (memory.size) (i32.const 65536)) (i32.const 1))"
        ),
        "start",
        "memory that it does not have",
    ),
    hostile(
        "another prompt",
        program("(call $sample)", SAMPLE, imports=MORE + IMPORTS).replace(
            PROMPT,
            f"""(data (i32.const 70000) "{quoted('{"prompt":[7,7,7]}')}") (func (export "aici_init_prompt") (param i32)
    (call $result (i32.const 70000) (i32.const 18)))""",
        ),
        "start",
        "another prompt",
    ),
    hostile(
        "no answer to the prompt",
        program("(call $sample)", SAMPLE, imports=MORE + IMPORTS).replace(
            PROMPT, '(func (export "aici_init_prompt") (param i32))'
        ),
        "start",
        "gave no result",
    ),
    # what it does in a step
    hostile("endless loop", step(SPIN), "step", "25 ms"),
    hostile("endless recursion", step("(call $r)", "(func $r (call $r))"), "step", "stack is over"),
    hostile("endless calls of the host", step("(loop $spin (drop (call $seq)) (br $spin))"), "step", "25 ms"),
    hostile(
        "division by zero", step("(drop (i32.div_u (i32.const 1) (i32.const 0)))"), "step", "divided by zero"
    ),
    hostile("overflow", step("(drop (i32.div_s (i32.const 0x80000000) (i32.const -1)))"), "step", "overflow"),
    hostile(
        "memory out of bounds",
        step("(drop (i32.load offset=0xfffffff0 (i32.const -1)))"),
        "step",
        "does not have",
    ),
    hostile(
        "call of nothing",
        step("(call_indirect (param i32) (i32.const 0) (i32.const 1))", "(table 2 funcref)"),
        "step",
        "there is none",
    ),
    hostile(
        "call of another type",
        step(
            "(call_indirect (result i64) (i32.const 0)) (drop)",
            "(table 1 funcref) (elem (i32.const 0) $sample)",
        ),
        "step",
        "another type",
    ),
    hostile(
        "call beyond the table", step("(call_indirect (i32.const -1))", "(table 2 funcref)"), "step", "table"
    ),
    hostile("panic", step("unreachable"), "step", "ends it"),
    # pointers into the host
    *(
        hostile(
            f"pointer: {name}",
            step(body),
            "step",
            "blob 99" if "99" in body else "pointer that leaves its memory",
        )
        for name, body in POINTERS.items()
    ),
]


# -- Programs whose answer to a step is none that can be taken

WRONG = {
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
}
EMPTY = f"(i32.store (i32.const {256 + ALLOWED // 32 * 4}) (i32.const 0))"
ANSWERS: list[Hostile] = [
    *(hostile(f"answer: {name}", answers(text), "step", said) for name, (text, said) in WRONG.items()),
    hostile(
        "answer: too long",
        answers('{"branches":[],"x":"' + "x" * 4000 + '"}'),
        "step",
        "more than 2048",
        result_bytes=2048,
    ),
    hostile("answer: empty mask", step(f"{EMPTY} (call $answer) (return)"), "step", "allows no token"),
    hostile(
        "answer: mask of padding",
        step(f"{EMPTY} (i32.store (i32.const 292) (i32.const 0xfffff000)) (call $answer) (return)"),
        "step",
        "allows no token",
    ),
    hostile(
        "answer: mask of an invented call",
        answers('{"branches":[{"sample_mask":12345}]}').replace(
            "(call $result (i32.const 70000)",
            "(drop (call $bias (i32.const 256))) (call $result (i32.const 70000)",
        ),
        "step",
        "mask that it did not return",
    ),
    hostile("answer: none", step("(return)"), "step", "gave no result"),
]


# -- All programs that mean harm: what they try, when that shows, and what the error says

HOSTILE: list[Hostile] = [*MODULES, *RUNS, *ANSWERS]


# -- tests

PROMPT = [5, 6, 7]


def compiled(text: str | bytes, arg: str = "", trusted: bool = True, **limits: Any) -> CompiledGuide:
    parts: Any = SimpleNamespace(vocabulary=small_vocabulary(), time_left_s=60.0)
    source = text.encode() if isinstance(text, str) else text
    return compile_wasm(Guide.wasm(source, arg, limits=WasmLimits(**limits), trusted=trusted), parts)


def start(text: str, prompt: Sequence[int] = PROMPT, **limits: Any) -> Matcher:
    return compiled(text, **limits).matcher(Opening(prompt))


def mask(matcher: Matcher) -> list[int]:
    row = new_row()
    matcher.fill(row)
    return allowed(row)


@pytest.mark.parametrize("case", HOSTILE, ids=lambda case: case.name)
def test_it_is_refused_or_stopped(case: Hostile) -> None:
    if case.when == "compile":
        with pytest.raises(GuideError, match=case.error):
            compiled(case.text, **case.limits)
        return
    made = compiled(case.text, **case.limits)
    if case.when == "start":
        with pytest.raises(GuideError, match=case.error):
            made.matcher(Opening(PROMPT))
        return
    matcher = made.matcher(Opening(PROMPT))
    assert mask(matcher) == [ALLOWED]
    with pytest.raises(GuideStateError, match=case.error):
        matcher.accept(ALLOWED)
    # Its neighbour of the same program does not notice.
    assert mask(made.matcher(Opening(PROMPT))) == [ALLOWED]


def test_there_are_many() -> None:
    assert len(HOSTILE) >= 90
    assert len({case.name for case in HOSTILE}) == len(HOSTILE)


def test_what_is_of_no_use_to_it() -> None:
    """Files, clocks, entropy and memory: the answers do no harm, and the program goes on."""
    body = " ".join(
        [
            expect(8, "(call $open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 4) (i32.const 0) (i64.const 0) "
                   "(i64.const 0) (i32.const 0) (i32.const 16))"),
            expect(8, "(call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 16))"),
            expect(8, "(call $poll (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 16))"),
            expect(63, "(call $clock (i32.const 0) (i64.const 0) (i32.const 8))"),
            "(i64.store (i32.const 8) (i64.const -1))",
            expect(0, "(call $clock (i32.const 1) (i64.const 0) (i32.const 8))"),
            expect(0, "(i32.wrap_i64 (i64.load (i32.const 8)))"),
            "(i32.store (i32.const 16) (i32.const 77))",
            expect(0, "(call $random (i32.const 16) (i32.const 4))"),
            expect(77, "(i32.load (i32.const 16))"),
            expect(-1, "(memory.grow (i32.const 60000))"),
            expect(8, "(call $write (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 16))"),
        ]
    )  # fmt: skip
    assert mask(start(begin(body))) == [ALLOWED]


def test_a_step_that_fails_leaves_nothing_in_the_memory() -> None:
    """Each step but the first marks the memory, and stops itself where it finds the mark; told of ALLOWED it traps
    then."""
    at = len('{"backtrack":0,"tokens":[')
    body = f"""(i32.store (i32.const {256 + ALLOWED // 32 * 4}) (i32.const {3 << ALLOWED % 32}))
      (global.set $step (i32.add (global.get $step) (i32.const 1)))
      (if (i32.gt_u (global.get $step) (i32.const 1)) (then
        (if (i32.load8_u (i32.const 70000)) (then (call $stop)))
        (i32.store8 (i32.const 70000) (i32.const 1))
        (drop (call $read (call $process_arg) (i32.const 4096) (i32.const 2000)))
        (if (i32.eq (i32.load8_u (i32.const {4096 + at + 2})) (i32.const 48)) (then unreachable))))
      (call $answer)"""
    matcher = start(program(body, SAMPLE, imports=MORE + IMPORTS))
    assert mask(matcher) == [ALLOWED, ALLOWED + 1]
    for _ in range(2):
        with pytest.raises(GuideStateError, match="ends it"):
            matcher.accept(ALLOWED)
        assert matcher.accept(ALLOWED + 1)
        with pytest.raises(GuideStateError, match="stopped itself"):
            matcher.accept(ALLOWED + 1)
        matcher.rollback(1)


def test_a_flood_of_words_ends_at_the_limit() -> None:
    flood = step(
        """(i32.store (i32.const 4) (i32.const 6000)) (i32.store (i32.const 0) (i32.const 65536))
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 32)))"""
    )
    matcher = start(flood, log_bytes=10_000)
    for _ in range(3):
        assert matcher.accept(ALLOWED)
    assert 6000 <= len(wasm_logs(matcher)) <= 20_000
    with pytest.raises(GuideStateError, match="more than 5000 bytes to its log"):
        start(flood, log_bytes=5000).accept(ALLOWED)


COMMAND = '{"WriteVar":{"name":"n","value":"' + "61" * 100 + '","op":"Append","when_version_is":null}}'


def test_a_flood_of_variables_ends_at_the_quota() -> None:
    escaped = COMMAND.replace('"', '\\"')
    flood = step(
        f"(drop (call $storage (i32.const 70000) (i32.const {len(COMMAND)})))",
        f'(data (i32.const 70000) "{escaped}")',
    )
    made = compiled(flood, variable_bytes=450)
    matcher = made.matcher(Opening(PROMPT))
    for _ in range(4):
        assert matcher.accept(ALLOWED)
    with pytest.raises(GuideStateError, match="variable_bytes"):
        matcher.accept(ALLOWED)
    assert made.matcher(Opening(PROMPT)).accept(ALLOWED)  # another request has a quota of its own


def test_instances_share_nothing() -> None:
    counter = program(
        """(global.set $step (i32.add (global.get $step) (i32.const 1)))
        (i32.store (i32.const 400) (i32.add (i32.load (i32.const 400)) (i32.const 1)))
        (if (i32.ne (i32.load (i32.const 400)) (global.get $step)) (then unreachable))
        (if (i32.gt_u (global.get $step) (i32.const 3)) (then unreachable))
        (call $sample)""",
        SAMPLE,
        imports=MORE + IMPORTS,
    )
    made = compiled(counter)
    one, two = (made.matcher(Opening(PROMPT)) for _ in range(2))
    for _ in range(2):
        assert one.accept(ALLOWED)
        assert two.accept(ALLOWED)
    fork = one.fork()
    for matcher in (one, fork, two):
        with pytest.raises(GuideStateError):
            matcher.accept(ALLOWED)


def test_a_stranger_s_module_is_compiled_apart() -> None:
    text = step("")
    assert mask(compiled(text, trusted=False).matcher(Opening(PROMPT))) == [ALLOWED]
    with pytest.raises(GuideError, match="does not compile"):
        compiled(text.replace("(call $sample)", "(call $sample) (i64.const 1)"), trusted=False)


def test_limits_are_checked() -> None:
    for limits, what in (
        ({"step_ms": 0}, "step_ms is 0; it must be 1 to 60000"),
        ({"memory_bytes": 1}, "memory_bytes"),
        ({"compile_s": float("nan")}, "compile_s is nan; give a number"),
        ({"log_bytes": "many"}, "give a number"),
        ({"stack_bytes": True}, "give a number"),
        ({"stack_bytes": 8 << 20}, "must be 16384 to 4194304"),
    ):
        with pytest.raises(GuideError, match=what):
            WasmLimits(**limits)
