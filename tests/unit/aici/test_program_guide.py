"""What Python does for programs: the trie that they read, compiling apart, the cache, guides and their starts."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.grammar.grammars import small_vocabulary
from support.wasm.hostile import step
from weft import Guide, GuideError, UnavailableError
from weft.aici import WasmLimits, compile, worker
from weft.aici.audit import audit
from weft.aici.compile import ArtefactCache
from weft.aici.source import WasmSource
from weft.aici.trie import NO_TOKEN, build
from weft.engine.scheduler.starts import StartThreads
from weft.errors import InterfaceError
from weft.grammar import CompileLimits, GuideCompiler, Opening
from weft.grammar.base import CompiledGuide
from weft.grammar.starts import StartedGuide, for_request

GOOD = step("").encode()


def walk(blob: bytes) -> dict[bytes, int]:
    """The tokens of a trie, read as AICI's programs read it: node after node, with a stack of bytes."""
    header = struct.unpack("<7I", blob[:28])
    nodes = np.frombuffer(blob, "<u4", count=header[2] // 4, offset=28).reshape(-1, 2)
    assert nodes[0, 1] >> 8 == len(nodes)
    found, stack, pops = {}, [], 0
    for first, second in nodes[1:].tolist():
        del stack[len(stack) - pops :]
        stack.append(first & 0xFF)
        if first >> 8 != NO_TOKEN:
            found[bytes(stack)] = first >> 8
        pops = second & 0xFF if second >> 8 == 1 else 0
    assert pops == len(stack)
    return found


def skip(blob: bytes, prefix: bytes) -> set[bytes]:
    """The tokens that do not begin with `prefix`, by a walk that leaves its subtree out."""
    nodes = np.frombuffer(blob, "<u4", count=struct.unpack("<7I", blob[:28])[2] // 4, offset=28).reshape(
        -1, 2
    )
    found, stack, pops, i = set(), bytearray(), 0, 1
    while i < len(nodes):
        first, second = (int(value) for value in nodes[i])
        if pops:
            del stack[-pops:]
        stack.append(first & 0xFF)
        if stack == prefix:
            stack.pop()
            i, pops = i + (second >> 8), (second & 0xFF) - 1
            continue
        if first >> 8 != NO_TOKEN:
            found.add(bytes(stack))
        i, pops = i + 1, second & 0xFF if second >> 8 == 1 else 0
    return found


@pytest.mark.parametrize("seed", range(40))
def test_the_trie_holds_the_vocabulary(seed: int) -> None:
    rng = random.Random(seed)
    letters = rng.choice([b"ab", b"abc\0\xff", bytes(range(256)), bytes(range(252))])
    tokens = [
        bytes(rng.choices(letters, k=rng.choice([0, 1, 2, 3, 9]))) for _ in range(rng.choice([1, 60, 500]))
    ]
    if seed % 3 == 0:
        tokens += [prefix + bytes([byte]) for byte in letters for prefix in (b"", b"a")]
    blob = build(tokens, 7)
    expected = {token: i for i, token in enumerate(tokens) if token}
    assert walk(blob) == expected
    for prefix in rng.sample(sorted(expected), min(len(expected), 5)):
        assert skip(blob, prefix) == {token for token in expected if not token.startswith(prefix)}
    _, size, num_nodes, num_offsets, num_data, num_tokens, end = struct.unpack("<7I", blob[:28])
    assert (num_tokens, end, len(blob)) == (len(tokens), 7, size + num_nodes + num_offsets + num_data)
    offsets = np.frombuffer(blob, "<u4", count=len(tokens), offset=28 + num_nodes).tolist()
    data = blob[28 + num_nodes + num_offsets :]
    assert [data[o >> 10 : (o >> 10) + (o & 1023)] for o in offsets] == tokens


def test_tokens_that_the_trie_has_no_room_for() -> None:
    long, longer = b"x" * 300, b"y" * 1024
    blob = build([b"x", long, longer], 0)
    assert walk(blob) == {b"x": 0}  # a walker's stack can't take them
    assert long in blob  # but by its id a program finds the bytes
    assert longer not in blob
    with pytest.raises(GuideError, match="does not fit AICI's trie"):
        build([b"z" * 1000] * 4200, 0)


def test_the_audit_adds_the_globals_and_leaves_out_what_is_custom() -> None:
    source = WasmSource.read(GOOD, "", None, True)
    custom = b"\0\x05\x04name"
    wasm = audit(source.module + custom, source.limits)
    assert b"weft_global_0" in wasm
    assert custom not in wasm
    assert wasm.count(b"aici_mid_process") == 1


def test_text_without_wasmtime_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    binary = WasmSource.read(GOOD, "", None, True).module
    monkeypatch.setitem(sys.modules, "wasmtime", None)
    with pytest.raises(InterfaceError, match=r"pip install 'wasmtime"):
        Guide.wasm(GOOD)
    assert Guide.wasm(binary).payload.module == binary


def test_guides_are_equal_by_content(tmp_path: Path) -> None:
    path = tmp_path / "program.wat"
    path.write_bytes(GOOD)
    guide = Guide.wasm(path, "x")
    assert guide == Guide.wasm(str(path), "x") == Guide.wasm(GOOD, "x")
    others = [
        Guide.wasm(GOOD, "y"),
        Guide.wasm(GOOD, "x", trusted=True),
        Guide.wasm(step("(nop)").encode(), "x"),
    ]
    others.append(Guide.wasm(GOOD, "x", limits=WasmLimits(step_ms=9)))
    assert guide not in others
    assert str(guide).startswith("wasm ")
    assert Guide.wasm(GOOD, {"a": 1}).payload.argument == '{"a": 1}'


@pytest.mark.parametrize(
    ("program", "keywords", "match"),
    [
        ("/nowhere/program.wasm", {}, "can't be read: No such file"),
        (3, {}, "path or bytes, not a int"),
        (b"(module", {}, "does not parse"),
        (GOOD, {"arg": {1, 2}}, "JSON can hold"),
        (GOOD, {"limits": {"step_ms": 3}}, "give a WasmLimits"),
    ],
)
def test_what_is_wrong_at_first_sight(program: Any, keywords: dict[str, Any], match: str) -> None:
    with pytest.raises(GuideError, match=match):
        Guide.wasm(program, **keywords)


def bomb(blocks: int, variables: int) -> bytes:
    """A function whose loops each change some of its variables, which takes a compiler long."""
    loops = "".join(
        f"(loop (br_if 0 (local.tee {i % variables} (i32.add (local.get {i * 7 % variables}) "
        f"(local.get {i * 13 % variables}))))"
        for i in range(blocks)
    )
    return step("(call $bomb)", f"(func $bomb (local {'i32 ' * variables}) {loops} {')' * blocks})").encode()


def test_a_module_that_takes_long_to_compile() -> None:
    with GuideCompiler(small_vocabulary()) as compiler:
        slow = compiler.submit(Guide.wasm(bomb(1000, 6000), limits=WasmLimits(compile_s=1)))
        assert compiler.compile(Guide.regex("a+")) is not None
        with pytest.raises(GuideError, match="did not compile in 1 s"):
            slow.result()


def workers() -> list[int]:
    """The processes that compile modules for this one now."""
    tasks = Path(f"/proc/{os.getpid()}/task")
    children = [pid for task in tasks.iterdir() for pid in _read(task / "children").split()]
    return [
        int(pid) for pid in children if worker.__file__.encode() in _read(Path(f"/proc/{int(pid)}/cmdline"))
    ]


def _read(path: Path) -> bytes:
    """A file of /proc; empty where its thread or process has ended meanwhile."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.mark.slow
@pytest.mark.parametrize("compile_s", [1, 3600])
def test_a_modules_compiler_ends_with_its_request(compile_s: float) -> None:
    """More modules at once than may be abandoned: each is ended, none counts as such, and guides of others compile."""
    limits, bounds = CompileLimits(time_s=3, max_abandoned=2), WasmLimits(compile_s=compile_s)
    with GuideCompiler(small_vocabulary(), limits=limits, workers=3) as compiler:
        module = bomb(4000, 6000 + int(compile_s))
        futures = [compiler.submit(Guide.wasm(module, str(i), limits=bounds)) for i in range(3)]
        errors = [future.exception(timeout=60) for future in futures]
        assert all(isinstance(error, GuideError | UnavailableError) for error in errors), errors
        deadline = time.monotonic() + 60
        while compiler.num_abandoned or workers():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        compiler.submit(Guide.regex("a+")).result(timeout=60)


@pytest.mark.slow
def test_a_module_that_was_refused_is_refused_at_once_with_another_argument() -> None:
    limits = CompileLimits(time_s=60)
    with GuideCompiler(small_vocabulary(), limits=limits) as compiler:
        module, bounds = bomb(1000, 6100), WasmLimits(compile_s=1)
        with pytest.raises(GuideError, match="did not compile in 1 s"):
            compiler.compile(Guide.wasm(module, "a", limits=bounds))
        start = os.times().children_user
        with pytest.raises(GuideError, match="did not compile in 1 s"):
            compiler.compile(Guide.wasm(module, "b", limits=bounds))
        assert os.times().children_user == start, "no process compiled it again"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV])
def test_a_modules_compiler_that_is_lost(number: signal.Signals) -> None:
    """Stopped, it is killed with its request, and it is not the module's fault."""
    with GuideCompiler(small_vocabulary(), limits=CompileLimits(time_s=4)) as compiler:
        guide = Guide.wasm(bomb(1000, 6200 + number))
        future = compiler.submit(guide)
        while not (found := workers()):
            time.sleep(0.001)
        os.kill(found[0], number)
        error = future.exception(timeout=60)
        assert isinstance(error, UnavailableError if number != signal.SIGSEGV else GuideError), error
        compiler.submit(Guide.regex("a+")).result(timeout=60)
        assert not workers()


def test_a_module_that_needs_much_memory_to_compile() -> None:
    limits: Any = SimpleNamespace(compile_s=10.0, compile_memory_bytes=4 << 20)
    compile.bind()
    module = audit(WasmSource.read(bomb(600, 2000), "", None, False).module, WasmLimits())
    with pytest.raises(GuideError, match=r"raise WasmLimits\.compile_memory_bytes"):
        compile._compile_in_process(module, limits, 60.0)


@pytest.mark.slow
def test_the_worker_takes_nothing_else_for_a_module() -> None:
    command = [
        sys.executable,
        "-I",
        "-S",
        worker.__file__,
        str(compile._core.__file__),
        compile.library_path(),
    ]
    done = subprocess.run(
        [*command, "5", str(1 << 30)], input=b"not a module", capture_output=True, env={}, check=False
    )
    assert done.returncode == worker.REFUSED
    assert done.stdout == b""
    assert done.stderr


def test_the_cache_of_artefacts_is_bounded() -> None:
    made: list[str] = []

    def make(key: str, size: int) -> bytes:
        def now() -> bytes:
            made.append(key)
            return b"x" * size

        return cache.get(key, now)

    cache = ArtefactCache(100)
    for key, size in (
        ("a", 40),
        ("b", 40),
        ("a", 40),
        ("c", 40),
        ("a", 40),
        ("b", 40),
        ("large", 200),
        ("large", 200),
    ):
        assert len(make(key, size)) == size
    assert made == ["a", "b", "c", "b", "large", "large"]
    assert cache.num_bytes <= 100


class Slow:
    """A compiled guide that opens ahead, or fails to."""

    guide: Any = "guide"
    vocab_size = 300
    memory_bytes = 1
    notes = ()
    sequence_bytes = 5
    opens_ahead = True
    memory_settings = "its limits"

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.opened: list[Any] = []

    def matcher(self, opening: Opening = Opening()) -> Any:  # noqa: B008
        return "late"

    def open(self, opening: Opening) -> Any:
        if self.error is not None:
            raise self.error
        self.opened.append(Copied([opening.prompt]))
        return self.opened[-1]


class Copied(list[Any]):
    """A matcher that counts its copies."""

    def fork(self) -> Copied:
        self.append(len(self))
        return Copied([self[0], self[-1]])


def done(result: Any) -> Future[CompiledGuide]:
    future: Future[CompiledGuide] = Future()
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


def test_guides_are_opened_once_for_all_sequences() -> None:
    """The first is kept until the last one takes it; then nothing is."""
    compiled, opening = Slow(), Opening([1, 2])
    opened = for_request(done(compiled), opening).result(60)
    assert isinstance(opened, StartedGuide)
    assert (opened.guide, opened.vocab_size, opened.sequence_bytes) == ("guide", 300, 5)
    assert not compiled.opened
    begun: list[Any] = [opened.begin(is_last=is_last) for is_last in (False, False, True)]
    assert begun == [[[1, 2], 1], [[1, 2], 2], [[1, 2], 1, 2]]
    assert [begun[2]] == compiled.opened and opened._first is None
    alone: Any = opened.begin(is_last=True)
    assert alone == [[1, 2]] and opened.matcher() == "late"  # type: ignore[comparison-overlap]
    opened.begin(is_last=False)
    opened.release()
    assert opened._first is None


def test_what_need_not_be_opened_passes() -> None:
    opening = Opening([1])
    plain = done(SimpleNamespace())
    assert for_request(plain, opening) is plain
    waits: Future[CompiledGuide] = Future()
    found = for_request(waits, opening)
    waits.set_result(plain.result())
    assert found.result(60) is plain.result()
    waits = Future()
    found = for_request(waits, opening)
    waits.set_exception(GuideError("did not compile"))
    with pytest.raises(GuideError, match="did not compile"):
        found.result(60)


def test_starts_end_with_their_owner() -> None:
    starts = StartThreads()
    with pytest.raises(GuideError, match="planted"):
        starts.begin(
            partial(StartedGuide(Slow(GuideError("planted")), Opening()).begin, is_last=True)
        ).result(60)
    starts.close()
    with pytest.raises(GuideError, match="was closed"):
        starts.begin(lambda: pytest.fail("it began")).result(60)
