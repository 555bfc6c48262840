"""Guides of strangers: each compiles, or fails with a `GuideError` within its limits, and leaves nothing running."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.grammar.grammars import small_vocabulary
from support.grammar.hostile import CASES, LETTERS, reference_tower, tower
from weft.errors import GuideError, UnavailableError
from weft.grammar import CompileLimits, Guide, GuideCompiler
from weft.grammar.base import Prepared
from weft.grammar.compile.trial import Trial, Verdict
from weft.grammar.limits import check_costs
from weft.grammar.llguidance.backend import LLGuidanceBackend
from weft.grammar.xgrammar.backend import XGrammarBackend

EXPLODING = {
    "a lazy tail of a class": Guide.regex("[a-z]*x[a-z]{200}"),
    "alternatives that begin alike": Guide.regex("|".join("a" * i + "[ab]*b" for i in range(1, 120))),
    "counts within counts": Guide.regex("((a{1,50}b){1,50}c){1,50}"),
    "any text between many letters": Guide.regex(".*".join(LETTERS * 6)),
    "optional letters": Guide.regex("(" + "?".join(LETTERS * 8) + "?){1,9}"),
    "terminals that overlap": Guide.lark(
        "start: (" + "|".join(f"T{i}" for i in range(200)) + ")+\n"
        + "\n".join(f"T{i}: /[a-z]{{1,{i + 1}}}{LETTERS[i % 26]}[a-z]*/" for i in range(200))
    ),
    "a terminal of a count of counts": Guide.lark("start: T\nT: /(([a-z]{1,60}-){1,60}[0-9]){1,60}/"),
    "rules that are all nothing": Guide.lark(
        "start: r0\n" + "\n".join(f"r{i}: r{i + 1}? r{i + 1}?" for i in range(60)) + '\nr60: "a"?'
    ),
    "two ways to right and left": Guide.lark('start: start start | start "a" | "a" start | "a"'),
    "brackets that may close anything": Guide.ebnf('root ::= "(" root (")" | "]")? root? | [a-z]*'),
    "rules that double in EBNF": Guide.ebnf(
        "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(50)) + '\nr50 ::= "a" | ""'
    ),
    "optional rules in a row": Guide.ebnf("root ::= " + " ".join(["[a-z]?"] * 2000)),
    "properties of any order": Guide.json_schema(
        {"type": "object", "properties": {f"{a}{b}": {"enum": [a, b]} for a in LETTERS for b in LETTERS}},
        any_order=True,
    ),
    "patterns that exclude each other": Guide.json_schema(
        {"allOf": [{"type": "string", "pattern": f"^[a-z]*{a}[a-z]{{9}}{LETTERS[-i]}"} for i, a in enumerate(LETTERS)]}
    ),
    "numbers in bounds, many times": Guide.json_schema(
        {"items": {"anyOf": [{"type": "number", "minimum": i / 7, "maximum": 10**9 + i / 3} for i in range(300)]}}
    ),
    "unions of objects within one another": Guide.json_schema(
        {"$defs": {"n": {"anyOf": [{"properties": {k: {"$ref": "#/$defs/n"}}} for k in LETTERS * 3]}},
         "$ref": "#/$defs/n"}
    ),
}  # fmt: skip
"""Guides that cost far more than they say."""


@pytest.fixture(scope="module")
def compiler() -> Iterator[GuideCompiler]:
    with GuideCompiler(small_vocabulary(), backend="xgrammar", untrusted=True) as made:
        made.compile(Guide.regex("ready"))
        yield made


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    """A trial without bounds in front."""
    made = Trial(small_vocabulary(), "xgrammar")
    made.wait()
    yield made
    made.close()


def compile_guide(compiler: GuideCompiler, kind: str, argument: Any) -> None:
    """What is left out of a schema is not the question here."""
    options = {"strict": False} if kind == "json_schema" else {}
    compiler.submit(getattr(Guide, kind)(argument, **options)).result(timeout=60)


def tried(trial: Trial, guide: Guide, limits: CompileLimits) -> Verdict:
    """The verdict, asked for again while this machine is too busy to give one."""
    for _ in range(20):
        with contextlib.suppress(UnavailableError):
            return trial.run(guide, limits)
    return trial.run(guide, limits)


def helper(compiler: GuideCompiler) -> int:
    trial = compiler._trial
    assert isinstance(trial, Trial)
    return trial.pid


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until_ended(pid: int, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.01)


def wait_for_no_children(pid: int) -> None:
    deadline = time.monotonic() + 60
    while children(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("kind", "name", "argument", "text"),
    [
        pytest.param(*case, id=f"{case[0]}: {case[1]}", marks=[pytest.mark.slow] if i % 6 else [])
        for i, case in enumerate(CASES)
    ],
)
def test_a_strangers_guide(
    compiler: GuideCompiler, kind: str, name: str, argument: Any, text: str | None
) -> None:
    start = time.monotonic()
    if text is None:
        compile_guide(compiler, kind, argument)
    else:
        with pytest.raises(GuideError, match=text):
            compile_guide(compiler, kind, argument)
    assert time.monotonic() - start < compiler.limits.time_s + 60
    assert compiler.num_abandoned == 0
    wait_for_no_children(helper(compiler))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llguidance", "auto"])
def test_the_other_backends_keep_the_limits(name: str) -> None:
    """What one of them takes another may refuse; none takes long, or fails with anything else."""
    with GuideCompiler(small_vocabulary(), backend=name, limits=CompileLimits.untrusted()) as compiler:
        num_compiled = 0
        for kind, case, argument, _ in CASES:
            start = time.monotonic()
            with contextlib.suppress(GuideError):
                compile_guide(compiler, kind, argument)
                num_compiled += 1
            assert time.monotonic() - start < compiler.limits.time_s + 60, case
        assert 15 < num_compiled < 35
        assert compiler.num_abandoned == 0
        compile_guide(compiler, "regex", "goes on")


@pytest.mark.parametrize(
    ("schema", "limits", "text"),
    [
        (
            tower(14),
            CompileLimits(time_s=1),
            "did not compile in 0.5 s of trial, half of CompileLimits.time_s",
        ),
        (tower(12), CompileLimits(memory_bytes=20 << 20, time_s=120), "takes more than 20 MiB|the 20 MiB of"),
        (
            tower(5),
            CompileLimits(mask_time_s=1e-9),
            r"a mask of the guide takes .*CompileLimits\.mask_time_s",
        ),
        (tower(5), CompileLimits(memory_bytes=1 << 26), None),
        (reference_tower(300), CompileLimits(), None),
    ],
)
def test_trials_are_stopped(trial: Trial, schema: Any, limits: CompileLimits, text: str | None) -> None:
    guide = Guide.json_schema(schema)
    if text is None:
        tried(trial, guide, limits)
    else:
        with pytest.raises(GuideError, match=text):
            tried(trial, guide, limits)
    wait_for_no_children(trial.pid)
    trial.run(Guide.regex("goes on"), CompileLimits())


def test_a_compiled_guide_that_holds_too_much() -> None:
    with GuideCompiler(small_vocabulary(), limits=CompileLimits(memory_bytes=1000)) as compiler:
        with pytest.raises(GuideError, match=r"bytes of memory; at most 1000 .*CompileLimits\.memory_bytes"):
            compiler.compile(Guide.json())
        assert not len(compiler.cache)


@pytest.mark.parametrize("kind", ["regex", "ebnf"])
@pytest.mark.parametrize(
    "piece", ["[", "{", "{ ", "{1", "{1,", '"', "\\", "(", ")", '"\\', "[\\", "a", " ", "{" + " " * 999]
)
def test_bounds_are_checked_in_linear_time(kind: Any, piece: str) -> None:
    """What any part of a text could be read as must not be looked for again from each of its characters."""
    guide = Guide(kind, piece * (200_000 // len(piece)))
    start = time.thread_time()
    with contextlib.suppress(GuideError):  # many groups are too deep
        check_costs(guide, CompileLimits())
    assert time.thread_time() - start < 4


def test_a_helper_that_does_not_start_says_so_and_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def raises(*_: object, **__: object) -> None:
        raise OSError("planted")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("subprocess.Popen", raises)
    with pytest.raises(UnavailableError, match="does not start: planted"):
        Trial(small_vocabulary())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_helper_that_is_lost_is_replaced_and_close_ends_what_it_tries(trial: Trial) -> None:
    lost = trial.pid
    os.kill(lost, signal.SIGKILL)
    trial.run(Guide.regex("replaced"), CompileLimits())
    assert trial.pid != lost
    pid = trial.pid
    errors: list[str] = []
    # On a busy machine the trial may go on for a while before it is closed, so it must not end by itself.
    limits = CompileLimits(time_s=600, memory_bytes=16 << 30)

    def work() -> None:
        try:
            trial.run(Guide.json_schema(tower(14)), limits)
        except GuideError as error:
            errors.append(str(error))

    at_work = threading.Thread(target=work)
    at_work.start()
    while not children(pid):
        time.sleep(0.001)
    child = children(pid)[0]
    trial.close()
    at_work.join(timeout=60)
    assert errors == ["the compiler was closed"]
    wait_until_ended(pid)
    wait_until_ended(child)


@pytest.mark.slow
def test_nothing_outlives_a_process_that_is_killed() -> None:
    program = f"""
        import sys
        sys.path[:0] = {[str(Path(__file__).parents[2])]!r}
        from support.grammar.grammars import small_vocabulary
        from support.grammar.hostile import tower
        from weft.grammar import CompileLimits, Guide, GuideCompiler
        compiler = GuideCompiler(
            small_vocabulary(), backend="xgrammar", untrusted=True, limits=CompileLimits(time_s=600)
        )
        compiler.compile(Guide.regex("ready"))
        print(compiler._trial.pid, flush=True)
        compiler.compile(Guide.json_schema(tower(14)))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        while not children(pid):
            time.sleep(0.01)
        child = children(pid)[0]
        process.kill()
    wait_until_ended(pid)
    wait_until_ended(child)


def test_many_threads_share_one_cache(compiler: GuideCompiler) -> None:
    """Counted: each content is compiled once, whoever asks, and every later request finds it."""
    hits, misses = compiler.cache.num_hits, compiler.cache.num_misses
    patterns = [f"shared{i}" for i in range(8)]
    for pattern in patterns:
        compile_guide(compiler, "regex", pattern)

    def ask() -> None:
        for pattern in patterns:
            compile_guide(compiler, "regex", pattern)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (compiler.cache.num_hits - hits, compiler.cache.num_misses - misses) == (64, 8)


def rule_chain(length: int) -> str:
    rules = "\n".join(f"a{i}: a{i + 1}" for i in range(length))
    return f'start: a0\n{rules}\na{length}: "a"\n'


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["llguidance", "auto"])
def test_what_overflows_a_librarys_stack_ends_its_trial_alone(backend: str) -> None:
    with GuideCompiler(
        small_vocabulary(), backend=backend, untrusted=True, limits=CompileLimits(max_chain=10**6)
    ) as compiler:
        for guide in (Guide.lark(rule_chain(60_000)), Guide.after("</t>", Guide.lark(rule_chain(60_001)))):
            with pytest.raises(GuideError, match="the grammar library crashed"):
                compiler.compile(guide)
        compiler.compile(Guide.lark('start: "goes on"'))


@pytest.mark.slow
def test_the_library_that_a_trial_settles_for_builds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLGuidance's parser is soon full; the trial finds that, and the other library is what is used."""
    asked: list[str] = []
    for name, library in (("xgrammar", XGrammarBackend), ("llguidance", LLGuidanceBackend)):

        def build(
            self: Any, guide: Guide, prepared: Prepared, name: str = name, build_now: Any = library.build
        ) -> Any:
            asked.append(name)
            return build_now(self, guide, prepared)

        monkeypatch.setattr(library, "build", build)
    with GuideCompiler(small_vocabulary(), untrusted=True, limits=CompileLimits()) as compiler:
        assert compiler.compile(Guide.lark('start: "a"')).backend == "llguidance"
        assert compiler.compile(Guide.ebnf('root ::= "a"+')).backend == "xgrammar"
        assert compiler.compile(Guide.json_schema(tower(11))).backend == "xgrammar"
    assert asked == ["llguidance", "xgrammar", "xgrammar"]


@pytest.fixture(scope="module")
def auto() -> Iterator[GuideCompiler]:
    with GuideCompiler(small_vocabulary(), untrusted=True) as made:
        assert made._trial is not None
        made._trial.wait(time.monotonic() + 120)
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPLODING)
def test_a_guide_that_explodes_costs_its_client_alone(auto: GuideCompiler, name: str) -> None:
    """It is compiled or refused within its time, with nothing left of it; another client's guide goes beside it."""
    start = time.monotonic()
    future = auto.submit(EXPLODING[name], client="stranger")
    auto.submit(Guide.regex(f"beside {len(name)}[a-z]"), client="other").result(timeout=60)
    error = future.exception(timeout=60)
    assert error is None or isinstance(error, GuideError | UnavailableError), error
    assert time.monotonic() - start < auto.limits.time_s + 60
    deadline = time.monotonic() + 60
    while auto.num_abandoned or children(helper(auto)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
