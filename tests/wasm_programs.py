"""Small programs in WebAssembly's text, and how tests start them."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grammars import END, small_vocabulary
from weft import _core
from weft.grammar import Matcher

wasmtime = pytest.importorskip("wasmtime", reason="wasmtime is not installed", exc_type=ImportError)

IMPORTS = """
 (import "env" "aici_host_read_blob" (func $read (param i32 i32 i32) (result i32)))
 (import "env" "aici_host_module_arg" (func $module_arg (result i32)))
 (import "env" "aici_host_process_arg" (func $process_arg (result i32)))
 (import "env" "aici_host_token_trie" (func $trie (result i32)))
 (import "env" "aici_host_tokenize" (func $tokenize (param i32 i32) (result i32)))
 (import "env" "aici_host_return_logit_bias" (func $bias (param i32) (result i32)))
 (import "env" "aici_host_return_process_result" (func $result (param i32 i32)))
 (import "env" "aici_host_storage_cmd" (func $storage (param i32 i32) (result i32)))
 (import "env" "aici_host_self_seq_id" (func $seq (result i32)))
 (import "env" "aici_host_get_config" (func $config (param i32 i32) (result i32)))
 (import "env" "aici_host_stop" (func $stop))
 (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
 (memory (export "memory") 2)
 (global $step (export "step") (mut i32) (i32.const 0))
 (func $put (param $at i32) (param $value i32) (result i32)
   (local $from i32) (local $end i32)
   (local.set $end (i32.const 1000)) (local.set $from (i32.const 1000))
   (loop $digit
     (local.set $from (i32.sub (local.get $from) (i32.const 1)))
     (i32.store8 (local.get $from) (i32.add (i32.const 48) (i32.rem_u (local.get $value) (i32.const 10))))
     (br_if $digit (local.tee $value (i32.div_u (local.get $value) (i32.const 10)))))
   (memory.copy (local.get $at) (local.get $from) (i32.sub (local.get $end) (local.get $from)))
   (i32.add (local.get $at) (i32.sub (local.get $end) (local.get $from))))
"""

START = """
 (func (export "aici_init"))
 (func (export "aici_create") (result i32) (i32.const 1))
"""

PROMPT = """
 (func (export "aici_init_prompt") (param i32)
   (call $result (i32.const 2048) (call $read (call $process_arg) (i32.const 2048) (i32.const 2048))))
"""


def program(body: str, extra: str = "", start: str = START, imports: str = IMPORTS) -> str:
    """A program whose step is `body`."""
    return (
        f'(module {imports} {extra} {start} {PROMPT} (func (export "aici_mid_process") (param i32) {body}))'
    )


def quoted(text: str) -> str:
    """A text inside a data segment."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def escaped(data: bytes) -> str:
    """Any bytes inside a data segment."""
    return "".join(f"\\{byte:02x}" for byte in data)


def scripted(answers: Sequence[tuple[list[int] | None, dict[str, Any]] | str]) -> str:
    """A program that gives its answers one after another: the tokens of a mask (None: no mask) with the other members
    of its branch, or the text of a result as it is. The last answer is given for ever; a mask's ticket is put in the
    place of TICKET. What it is told is a line of its log."""
    data, branches, at = [], [], 16384
    for number, answer in enumerate(answers):
        mask, members = (None, answer) if isinstance(answer, str) else answer
        text = (
            members
            if isinstance(members, str)
            else json.dumps(
                {"branches": [{"sample_mask": None if mask is None else "TICKET", "splices": [], **members}]},
                separators=(",", ":"),
            )
        )
        head, _, tail = text.replace('"TICKET"', "TICKET").partition("TICKET")
        pieces = [at, at + len(head), at + len(head) + len(tail)]
        data.append(f'(data (i32.const {at}) "{quoted(head + tail)}")')
        at = (pieces[2] + 3) & ~3
        bits = bytearray(40)
        for token in mask or ():
            bits[token // 8] |= 1 << token % 8
        data.append(f'(data (i32.const {at}) "{escaped(bits)}")')
        ticket = "(nop)"
        if mask is not None:
            ticket = f"(local.set $at (call $put (local.get $at) (call $bias (i32.const {at}))))"
        last = number == len(answers) - 1
        compare = "i32.ge_u" if last else "i32.eq"
        branches.append(
            f"""(if ({compare} (global.get $step) (i32.const {number})) (then
              (memory.copy (local.get $at) (i32.const {pieces[0]}) (i32.const {len(head)}))
              (local.set $at (i32.add (local.get $at) (i32.const {len(head)})))
              {ticket}
              (memory.copy (local.get $at) (i32.const {pieces[1]}) (i32.const {len(tail)}))
              (local.set $at (i32.add (local.get $at) (i32.const {len(tail)})))))"""
        )
        at += 40
    body = f"""(local $at i32) (local $n i32)
      (local.set $n (call $read (call $process_arg) (i32.const 4096) (i32.const 2048)))
      (i32.store8 (i32.add (i32.const 4096) (local.get $n)) (i32.const 10))
      (i32.store (i32.const 1024) (i32.const 4096))
      (i32.store (i32.const 1028) (i32.add (local.get $n) (i32.const 1)))
      (drop (call $write (i32.const 1) (i32.const 1024) (i32.const 1) (i32.const 1032)))
      (local.set $at (i32.const 12288))
      {" ".join(branches)}
      (global.set $step (i32.add (global.get $step) (i32.const 1)))
      (call $result (i32.const 12288) (i32.sub (local.get $at) (i32.const 12288)))"""
    return program(body, " ".join(data))


@functools.cache
def bound() -> None:
    """Bind wasmtime's library once."""
    library = Path(wasmtime.__file__).parent / "linux-x86_64" / "_libwasmtime.so"
    assert _core.wasm_bind(str(library)) == ""


@functools.cache
def artefact(text: str) -> bytes:
    bound()
    return _core.wasm_compile(bytes(wasmtime.wat2wasm(text)))


def load(text: str, **limits: int) -> _core.WasmProgram:
    """A program for the small vocabulary."""
    vocabulary = small_vocabulary()
    texts = _core.TokenTexts(list(vocabulary.tokens))
    trie = b"a trie that these programs do not read"
    return _core.WasmProgram(artefact(text), trie, vocabulary.vocab_size, [END], texts, limits)


def start(text: str, arg: bytes = b"", prompt: Sequence[int] = (), **limits: int) -> Matcher:
    """A matcher at the start of a program."""
    return load(text, **limits).start(arg, list(prompt))
