"""Limits of programs: whatever breaches one is told so."""

from __future__ import annotations

import sys
import threading
import time

import pytest
import wasmtime

from support.wasm.programs import (
    MIXER,
    START,
    STOP,
    data,
    load,
    loaded,
    log_text,
    mask,
    program,
    scripted,
    start,
)
from weft import _core
from weft.errors import GuideError, GuideStateError, InputError

LOOP = "(loop $ever (br $ever))"
EXTRA = "(func $r (call $r))" + data(3000, "bad luck!")
OUTSIDE = "a pointer that leaves its memory"
BREACHES: list[tuple[str, dict[str, int], str]] = [
    ("(call $r)", {"stack_bytes": 65536}, "limit of 65536 bytes; raise stack_bytes"),
    (
        "(call $result (i32.const 0) (i32.const 4097))",
        {"result_bytes": 4096},
        "4097 bytes, more than 4096; raise result_bytes",
    ),
    (
        "(drop (call $tokenize (i32.const 0) (i32.const 99)))",
        {"result_bytes": 90},
        "text to tokenize has 99 bytes",
    ),
    (
        f"(loop $ever {log_text(0, 4000)} (br $ever))",
        {"log_bytes": 5000},
        "more than 5000 bytes to its log in one step; raise log_bytes",
    ),
    ("(unreachable)", {}, "reached an instruction that ends it"),
    (f"{log_text(3000, 9)} (unreachable)", {}, "its last words: bad luck!$"),
    ("(drop (i32.div_u (i32.const 1) (global.get $step)))", {}, "divided by zero"),
    ("(drop (i32.load (i32.const -4)))", {}, "memory that it does not have"),
    ("(call $stop)", {}, "stopped itself"),
    ("nop", {}, "aici_mid_process gave no result"),
    ("(call $result (i32.const -8) (i32.const 64))", {}, OUTSIDE),
    ("(drop (call $bias (i32.const 131072)))", {}, OUTSIDE),
    ("(drop (call $read (i32.const 100) (i32.const 131070) (i32.const -1)))", {}, OUTSIDE),
    ("(drop (call $write (i32.const 1) (i32.const 0) (i32.const 0x20000000) (i32.const 0)))", {}, OUTSIDE),
    ("(drop (call $read (i32.const 99) (i32.const 0) (i32.const 1)))", {}, "blob 99, which there is none"),
    ("(drop (call $bias (i32.const 0))) (drop (call $bias (i32.const 0)))", {}, "two masks in one step"),
]


class TestLimits:
    def test_a_step_that_takes_too_long(self) -> None:
        text = program(
            f"""(if (global.get $step) (then {LOOP}))
            (global.set $step (i32.const 1)) (drop (call $bias (i32.const 4096)))
            (call $result (i32.const 3000) (i32.const 33))""",
            data(3000, '{"branches":[{"sample_mask":1 }]}') + '(data (i32.const 4096) "\\20")',
        )
        matcher = start(text, step_ms=5)
        for _ in range(2):
            with pytest.raises(GuideStateError, match="more than 5 ms for one step; raise step_ms"):
                matcher.accept(5)
            assert mask(matcher) == [5]
        other = start(scripted([([5], {}), ([6], {})]))
        assert other.accept(5) and mask(other) == [6]

    def test_other_threads_go_on_meanwhile(self) -> None:
        text = program(
            f"""(if (global.get $step) (then {LOOP}))
            (global.set $step (i32.const 1)) (drop (call $bias (i32.const 4096)))
            (call $result (i32.const 3000) (i32.const 33))""",
            data(3000, '{"branches":[{"sample_mask":1 }]}') + '(data (i32.const 4096) "\\20")',
        )
        matcher, turns, during = start(text, step_ms=30), [0], []

        def walk() -> None:
            for call in (lambda: matcher.accept(5), lambda: matcher.validate([5, 5])):
                before = turns[0]
                with pytest.raises(GuideStateError, match="raise step_ms"):
                    call()
                during.append(turns[0] - before)

        thread, interval = threading.Thread(target=walk), sys.getswitchinterval()
        sys.setswitchinterval(100)  # nobody has to let go of the GIL
        try:
            thread.start()
            while thread.is_alive():
                turns[0] += 1
                time.sleep(0)
        finally:
            sys.setswitchinterval(interval)
        assert len(during) == 2 and min(during) > 0

    @pytest.mark.parametrize(
        "text",
        [
            program("", start=START.replace("(i32.const 1))", f"{LOOP} (i32.const 1))")),
            program("", extra=f"(func $first {LOOP}) (start $first)"),
            program(LOOP),
        ],
        ids=["create", "start function", "first step"],
    )
    def test_a_start_that_takes_too_long(self, text: str) -> None:
        with pytest.raises(GuideError, match="more than 20 ms to start; raise start_ms"):
            start(text, start_ms=20)

    @pytest.mark.parametrize(("body", "limits", "problem"), BREACHES)
    def test_every_breach_says_what_it_is(self, body: str, limits: dict[str, int], problem: str) -> None:
        with pytest.raises(GuideError, match=problem):
            start(program(body, EXTRA), **limits)

    def test_what_is_declared_is_limited_too(self) -> None:
        with pytest.raises(GuideError, match="more memory than 65536 bytes; raise memory_bytes"):
            start(program(""), memory_bytes=65536)
        with pytest.raises(GuideError, match="more than 999 elements; raise table_elements"):
            start(program("", "(table 1000 funcref)"), table_elements=999)
        with pytest.raises(GuideError, match=r"multiple memories|multi-memory"):
            start(program("", '(memory (export "m") 1)'))

    def test_memory_that_is_not_had(self) -> None:
        text = program(
            """(i32.store8 (i32.const 900) (i32.add (i32.const 49) (memory.grow (i32.const 100))))
            (i32.store8 (i32.const 901) (i32.add (i32.const 49) (memory.grow (i32.const 1))))"""
            + log_text(900, 2)
            + "(call $result (i32.const 3000) (i32.const 15))",
            data(3000, STOP),
        )
        assert _core.aici_log(start(text, memory_bytes=4 * 65536)) == "03"

    def test_modules_that_are_not_programs(self) -> None:
        with pytest.raises(GuideError, match=r"imports what programs don't have.*sock_accept"):
            start('(module (import "wasi_snapshot_preview1" "sock_accept" (func)))')
        with pytest.raises(GuideError, match="exports no memory"):
            start("(module)")
        with pytest.raises(GuideError, match="exports no function aici_init_prompt"):
            start('(module (memory (export "memory") 1))')
        with pytest.raises(GuideError, match="its aici_create returns no i32"):
            start(
                program(
                    "",
                    start='(func (export "aici_init")) (func (export "aici_create") (result i64) (i64.const 1))',
                )
            )
        with pytest.raises(GuideError, match=r"in aici_init: .*argument"):
            start(program("", start=START.replace('"aici_init")', '"aici_init") (param v128)')))
        with pytest.raises(GuideError, match="does not compile"):
            _core.aici_compile(b"\0asm\1\0\0\0garbage!")
        with pytest.raises(GuideError, match="can't be loaded"):
            loaded(b"garbage")

    def test_calls_through_tables_as_compilers_write_them(self) -> None:
        """Today's compilers write the table's number, 0, in five bytes."""
        text = "(module (type $t (func)) (table 1 funcref) (func $f) (func (call_indirect (type $t) (i32.const 0))))"
        short = bytes(wasmtime.wat2wasm(text))
        call = short.index(bytes([0x41, 0, 0x11, 0, 0, 0x0B]))
        long = bytearray(short)
        long[call + 4 : call + 5] = bytes([0x80, 0x80, 0x80, 0x80, 0])
        long[call - 2] += 4  # the body's size
        long[short.rindex(bytes([0x0A]), 0, call) + 1] += 4  # the section's
        for module in (short, bytes(long)):
            assert _core.aici_compile(module)

    def test_limits_are_checked(self) -> None:
        with pytest.raises(InputError, match="a program has no limit of_mine"):
            load(MIXER, of_mine=1)
        with pytest.raises(InputError, match="step_ms can't be 0"):
            load(MIXER, step_ms=0)
        with pytest.raises(GuideError, match="stack_bytes is 100; it can be"):
            load(MIXER, stack_bytes=100)


@pytest.mark.slow
def test_a_library_that_is_none() -> None:
    """In a process of its own, as the first library that binds stays."""
    import subprocess
    import sys

    code = (
        "from weft._core import aici_bind_wasmtime as bind; "
        "print(bind('/nowhere.so')); print(bind('libm.so.6'))"
    )
    lines = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.splitlines()
    assert "nowhere.so" in lines[0]
    assert lines[1] == "the function wasm_config_new is missing"
