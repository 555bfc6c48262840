"""The example program for digits, and variants of it: with splices, with forced text, or with other changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.grammar import Guide

EXAMPLES = Path(__file__).parents[3] / "examples"
SOURCE = EXAMPLES / "wasm_digits.wat"
DIGITS = SOURCE.read_text()


def digits(count: int) -> Guide:
    """A guide that allows `count` digits."""
    return Guide.wasm(SOURCE, str(count), trusted=True)


def changed(old: str, new: str) -> str:
    """The digits program with one part of its source replaced."""
    assert DIGITS.count(old) == 1
    return DIGITS.replace(old, new)


def with_text(at: int, text: str) -> str:
    escaped = text.replace('"', '\\"')
    return f'(data (i32.const {at}) "{escaped}")'


def forcing(tokens: Sequence[int]) -> bytes:
    """The digits program that first splices in `tokens`, without sampling. Each of their bytes counts as a digit."""
    text = _json({"branches": [{"sample_mask": None, "splices": [_splice((), 0, tokens)]}]})
    first = f"""(global $begun (mut i32) (i32.const 0)) {with_text(1024, text)}
      (func (export "aici_mid_process") (param $self i32) (local $token i32)
        (if (i32.eqz (global.get $begun)) (then
          (global.set $begun (i32.const 1))
          (call $return_result (i32.const 1024) (i32.const {len(text)})) (return)))"""
    return changed('(func (export "aici_mid_process") (param $self i32) (local $token i32)', first).encode()


def deciding(rest: str) -> bytes:
    """The digits program with `rest` after the mask in each of its results. Splices may take more tokens than
    remain."""
    program = DIGITS.replace("(i32.const 64) (i32.const 35)", f"(i32.const 1024) (i32.const {len(rest)})")
    program = program.replace(
        "(local.get $end) (i32.const 35))", f"(local.get $end) (i32.const {len(rest)}))"
    )
    program = program.replace(
        "(if (i32.eqz (global.get $left))", "(if (i32.le_s (global.get $left) (i32.const 0))"
    )
    assert program.count("(i32.const 1024)") == 1 and program.count(f"(i32.const {len(rest)})") >= 2
    program = program.replace("(data (i32.const 128)", f"{with_text(1024, rest)} (data (i32.const 128)")
    return program.encode()


def splicing(when: Sequence[int], backtrack: int, tokens: Sequence[int]) -> bytes:
    """The digits program with a splice after each token of `when`."""
    return deciding(f',"temperature":null,"splices":[{_json(_splice(when, backtrack, tokens))}]}}]}}')


def _splice(when: Sequence[int], backtrack: int, tokens: Sequence[int]) -> dict[str, Any]:
    return {"when_sampled": list(when), "backtrack": backtrack, "ff_tokens": list(tokens)}


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def telling(program: str = DIGITS, body: str = "") -> bytes:
    """A digits program that also writes the argument of each step to its log, a line per step, and appends a dot to
    the variable "steps". Then it runs `body`."""
    command = '{"WriteVar":{"name":"steps","value":"2e","op":"Append"}}'
    imports = """(import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
      (import "env" "aici_host_storage_cmd" (func $storage (param i32 i32) (result i32)))
      (memory (export "memory") 2)"""
    tell = f"""(call $take_tokens)
      (i32.store (i32.const 600) (i32.const 65536))
      (i32.store (i32.const 604) (i32.add (call $read_argument) (i32.const 1)))
      (i32.store8 (i32.add (i32.const 65535) (i32.load (i32.const 604))) (i32.const 10))
      (drop (call $fd_write (i32.const 1) (i32.const 600) (i32.const 1) (i32.const 608)))
      (drop (call $storage (i32.const 700) (i32.const {len(command)})))
      {body}
"""
    assert program.count('(memory (export "memory") 2)') == 1 and program.count("(call $take_tokens)\n") == 1
    program = program.replace('(memory (export "memory") 2)', f"{imports} {with_text(700, command)}")
    return program.replace("(call $take_tokens)\n", tell).encode()


def told(log: str) -> list[int]:
    """The tokens that the program of `telling` logged."""
    return [token for line in log.splitlines() for token in json.loads(line)["tokens"]]
