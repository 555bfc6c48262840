"""Programs that mean harm are refused, or stopped within their limits, with an error that says why."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from support.grammar.grammars import allowed, new_row, small_vocabulary
from support.wasm.hostile import HOSTILE
from support.wasm.hostile_parts import ALLOWED, MORE, SAMPLE, Hostile, begin, expect, step
from support.wasm.programs import IMPORTS, program
from weft import GuideError, GuideStateError
from weft.aici import WasmLimits, wasm_logs
from weft.aici.guide import compile_wasm
from weft.grammar import Guide, Matcher, Opening
from weft.grammar.base import CompiledGuide

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
