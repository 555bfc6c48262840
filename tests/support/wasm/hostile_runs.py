"""Programs that turn hostile when they start or in a step: what they ask of the host, run, and point to."""

from __future__ import annotations

from support.wasm.hostile_parts import MEMORY, MORE, SAMPLE, Hostile, begin, hostile, step
from support.wasm.programs import IMPORTS, PROMPT, program, quoted

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
