"""The compiler: equal guides are compiled once, within limits, and nobody waits for what ends."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from typing import Any, ClassVar

import pytest

from support.grammar.grammars import small_vocabulary
from weft import registry
from weft.errors import GuideError, UnavailableError
from weft.grammar import CompileLimits, Guide, GuideCompiler, Vocabulary


class Slow:
    """A backend that compiles when it is let."""

    gate = threading.Event()
    compiled: ClassVar[list[str]] = []

    def __init__(self, vocabulary: Vocabulary, **options: Any) -> None:
        self.vocabulary = vocabulary

    def compile(self, guide: Guide) -> Any:
        if guide.source == "slow":
            assert self.gate.wait(60)
        if guide.source == "broken":
            raise GuideError("planted")
        self.compiled.append(guide.source)
        return Made(guide, int(guide.source) if guide.source.isdigit() else 1)


class Made:
    vocab_size = 300
    notes = ()

    def __init__(self, guide: Guide, memory_bytes: int) -> None:
        self.guide = guide
        self.memory_bytes = memory_bytes

    def matcher(self) -> Any:
        raise NotImplementedError


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    Slow.gate, Slow.compiled = threading.Event(), []
    monkeypatch.setitem(registry.GRAMMARS, "slow", f"{__name__}:Slow")
    monkeypatch.setattr(registry, "load", lambda kind, name: Slow)


def guide_of(source: str) -> Guide:
    return Guide("ebnf", source)


def test_equal_guides_are_compiled_once(slow: None) -> None:
    with GuideCompiler(small_vocabulary(), backend="slow") as compiler:
        futures = [compiler.submit(guide_of("slow")) for _ in range(3)]
        assert not any(future.done() for future in futures)
        other = compiler.submit(guide_of("other")).result(60)
        Slow.gate.set()
        assert len({id(future.result(60)) for future in futures}) == 1
        assert compiler.submit(guide_of("other")).result(0) is other
        assert Slow.compiled == ["other", "slow"]
        with pytest.raises(GuideError, match="planted"):
            compiler.compile(guide_of("broken"))
        with pytest.raises(GuideError, match="planted"):
            compiler.compile(guide_of("broken"))


def test_nobody_cancels_what_others_wait_for(slow: None) -> None:
    with GuideCompiler(small_vocabulary(), backend="slow") as compiler:
        guide = guide_of("slow")
        mine, waiting = compiler.submit(guide), compiler.submit(guide_of("waits"))
        assert not mine.cancel()
        assert not waiting.cancel()
        Slow.gate.set()
        assert compiler.submit(guide).result(60) is mine.result(60)


def test_the_cache_is_bounded(slow: None) -> None:
    text = sys.getsizeof("40")
    with GuideCompiler(small_vocabulary(), backend="slow", cache_limit_bytes=100 + 2 * text) as compiler:
        for source in ("40", "41", "40", "42", "1000"):
            compiler.compile(guide_of(source))
        assert compiler.cache.num_bytes == 82 + 2 * text
        assert len(compiler.cache) == 2
        compiler.compile(guide_of("40"))
        assert Slow.compiled == ["40", "41", "42", "1000"]


def test_a_compile_past_its_time_fails_and_the_next_goes_on(slow: None) -> None:
    limits = CompileLimits(time_s=1.0, max_abandoned=1)  # a guide that is not slow has this time, too
    with GuideCompiler(small_vocabulary(), backend="slow", workers=1, limits=limits) as compiler:
        stuck = compiler.submit(guide_of("slow"))
        waiting = compiler.submit(guide_of("waiting"))
        with pytest.raises(GuideError, match=r"did not compile in 1 s"):
            stuck.result(60)
        waiting.result(60)
        assert compiler.num_abandoned == 1
        with pytest.raises(UnavailableError, match="past their time limit"):
            compiler.compile(guide_of("more"))
        Slow.gate.set()
        deadline = threading.Event()
        while compiler.num_abandoned and not deadline.wait(0.01):
            pass
        compiler.compile(guide_of("more"))


def test_limits_on_size_and_depth() -> None:
    limits = CompileLimits(max_source_bytes=2000, max_depth=8)
    with GuideCompiler(small_vocabulary(), limits=limits) as compiler:
        with pytest.raises(GuideError, match=r"has \d+ bytes; at most 2000"):
            compiler.compile(Guide.choice(["x" * 3000]))
        nested: dict[str, Any] = {"type": "integer"}
        for _ in range(10):
            nested = {"type": "array", "items": nested}
        with pytest.raises(GuideError, match="nests 11 deep"):
            compiler.compile(Guide.json_schema(nested))
        brackets_in_text = Guide.json_schema({"const": "[" * 20 + '\\"' + "{" * 20})
        compiler.compile(brackets_in_text)


def test_a_closed_compiler_takes_nothing(slow: None) -> None:
    compiler = GuideCompiler(small_vocabulary(), backend="slow", workers=1)
    stuck, waiting = compiler.submit(guide_of("slow")), compiler.submit(guide_of("waiting"))
    while len(compiler._workers.jobs) > 1:  # the thread has not begun the first
        time.sleep(0.001)
    threading.Timer(0.1, Slow.gate.set).start()
    compiler.close()
    with pytest.raises(GuideError, match="was closed"):
        waiting.result(60)
    stuck.result(60)
    with pytest.raises(GuideError, match="is closed"):
        compiler.submit(guide_of("more"))


@pytest.mark.slow
def test_the_end_of_the_program_does_not_wait_for_a_compile() -> None:
    """A schema that compiles for many seconds: the program ends, and quietly."""
    program = """
        from weft.grammar import CompileLimits, Guide, GuideCompiler, Vocabulary
        vocabulary = Vocabulary.from_tokens([b""] + [bytes([b]) for b in range(1, 256)], end_ids=[0])
        compiler = GuideCompiler(vocabulary, limits=CompileLimits(time_s=0.3, max_source_bytes=1 << 24))
        guide = Guide.json_schema({"enum": [f"some text {i * 7919 % 100003}" for i in range(60000)]})
        try:
            compiler.compile(guide)
        except Exception as error:
            print(type(error).__name__, compiler.num_abandoned)
        compiler.compile(Guide.regex("abc"))
        compiler.close()
        print("closed")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["GuideError", "1", "closed"]


@pytest.mark.slow
def test_the_end_of_the_program_survives_compiles_that_end_with_it() -> None:
    """Threads that come back from XGrammar when the interpreter has gone: CPython ends them, in C++ frames."""
    program = """
        import threading
        import time
        import xgrammar
        import weft.grammar.compile.compiler
        info = xgrammar.TokenizerInfo([b""] + [bytes([b]) for b in range(1, 256)], stop_token_ids=[0])
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

        def work():
            while True:
                compiler.compile_json_schema('{"type": "object"}')

        for _ in range(6):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.3)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
