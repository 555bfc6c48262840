"""Small programs in WebAssembly's text format, and helpers that start them."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import wasmtime

from support.grammar.grammars import END, allowed, new_row, small_vocabulary
from weft import _core
from weft.grammar import Matcher

STOP = '{"branches":[]}'
"""The result of a step that ends the answer."""
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
    """A program that runs `body` in each step."""
    return (
        f'(module {imports} {extra} {start} {PROMPT} (func (export "aici_mid_process") (param i32) {body}))'
    )


def quoted(text: str) -> str:
    """Escape a text for a data segment."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def escaped(data: bytes) -> str:
    """Escape bytes for a data segment."""
    return "".join(f"\\{byte:02x}" for byte in data)


def scripted(answers: Sequence[tuple[list[int] | None, dict[str, Any]] | str]) -> str:
    """A program that returns its answers one after another, and repeats the last one.

    An answer is the tokens of a mask (None: no mask) with other members of its branch, or the text of a result,
    which is returned as it is. TICKET in it stands for the mask's handle. Each step logs its argument as a line.
    """
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
    """Bind wasmtime's library, once."""
    library = Path(wasmtime.__file__).parent / "linux-x86_64" / "_libwasmtime.so"
    assert _core.aici_bind_wasmtime(str(library)) == ""


@functools.cache
def artefact(text: str) -> bytes:
    bound()
    return _core.aici_compile(bytes(wasmtime.wat2wasm(text)))


def data(at: int, text: str) -> str:
    """A data segment with a text."""
    return f'(data (i32.const {at}) "{quoted(text)}")'


def log_text(at: int, size: int) -> str:
    """Instructions that write a range of memory to the log."""
    return (
        f"(i32.store (i32.const 1024) (i32.const {at})) (i32.store (i32.const 1028) (i32.const {size}))"
        "(drop (call $write (i32.const 1) (i32.const 1024) (i32.const 1) (i32.const 1032)))"
    )


def load(text: str, **limits: int) -> _core.AiciProgram:
    """Load a program for the small vocabulary."""
    return loaded(artefact(text), **limits)


def loaded(compiled: bytes, **limits: int) -> _core.AiciProgram:
    vocabulary = small_vocabulary()
    texts = _core.TokenTexts(list(vocabulary.tokens))
    trie = b"a trie that these programs do not read"
    return _core.AiciProgram(compiled, trie, vocabulary.vocab_size, [END], texts, limits)


def start(text: str, arg: bytes = b"", prompt: Sequence[int] = (), **limits: int) -> Matcher:
    """Start a program, and return its matcher."""
    return load(text, **limits).start(arg, list(prompt))


# A program whose masks depend on all arguments of its steps so far. They are mixed into a global, into words all over
# its memory, which sometimes grows, and into a variable. It sometimes allows the end token (0), and always token 5.
MIXER = program(
    """(local $n i32) (local $i i32) (local $h i32) (local $at i32)
      (local.set $h (global.get $step))
      (local.set $n (call $read (call $process_arg) (i32.const 8192) (i32.const 4096)))
      (loop $each
        (local.set $h (i32.add (i32.mul (local.get $h) (i32.const 31))
                               (i32.load8_u (i32.add (i32.const 8192) (local.get $i)))))
        (br_if $each (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n))))
      (if (i32.and (i32.eq (i32.and (local.get $h) (i32.const 7)) (i32.const 3))
                   (i32.lt_u (memory.size) (i32.const 6)))
        (then (drop (memory.grow (i32.const 1)))))
      (local.set $i (i32.const 0))
      (loop $word
        (local.set $h (i32.xor (local.get $h) (i32.shl (local.get $h) (i32.const 13))))
        (local.set $h (i32.xor (local.get $h) (i32.shr_u (local.get $h) (i32.const 17))))
        (local.set $h (i32.xor (local.get $h) (i32.shl (local.get $h) (i32.const 5))))
        (local.set $at (i32.add (i32.const 65536) (i32.and (i32.const -4)
          (i32.rem_u (local.get $h) (i32.sub (i32.shl (memory.size) (i32.const 16)) (i32.const 65540))))))
        (local.set $h (i32.add (local.get $h) (i32.load (local.get $at))))
        (i32.store (local.get $at) (local.get $h))
        (i32.store (i32.add (i32.const 4096) (i32.shl (local.get $i) (i32.const 2))) (local.get $h))
        (br_if $word (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 10))))
      (i32.store (i32.const 4096) (i32.or (i32.load (i32.const 4096)) (i32.const 32)))
      (i32.store8 (i32.const 1148) (i32.add (i32.const 48) (i32.and (local.get $h) (i32.const 7))))
      (local.set $n (call $read (call $storage (i32.const 1100) (i32.const 75)) (i32.const 8192) (i32.const 4096)))
      (local.set $h (i32.add (local.get $h) (i32.load8_u (i32.add (i32.const 8189) (local.get $n)))))
      (global.set $step (local.get $h))
      (local.set $at (call $put (i32.const 1348) (call $bias (i32.const 4096))))
      (i64.store (local.get $at) (i64.const 0x7d5d7d)) ;; }]}
      (call $result (i32.const 1320) (i32.sub (i32.add (local.get $at) (i32.const 3)) (i32.const 1320)))""",
    data(1100, '{"WriteVar":{"name":"n","op":"Append","value":"30","when_version_is":null}}')
    + data(1320, '{"branches":[{"sample_mask":'),
)


def mask(matcher: Matcher) -> list[int]:
    row = new_row()
    row[:] = -1
    matcher.fill(row)
    return allowed(row)


def told(matcher: Matcher) -> list[str]:
    """The arguments of a scripted program's steps after the start, without the parts that never change."""
    lines = _core.aici_log(matcher).splitlines()
    assert all(line.startswith('{"backtrack":0,') and line.endswith(',"fork_group":[1]}') for line in lines)
    return [line[len('{"backtrack":0,') : -len(',"fork_group":[1]}')] for line in lines][1:]


def state(matcher: Matcher) -> tuple[list[int], bool, float | None, list[int]]:
    return mask(matcher), matcher.is_terminated(), matcher.temperature(), matcher.forced(9)
