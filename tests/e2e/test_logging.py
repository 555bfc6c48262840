"""What weft logs: nothing that a program did not ask for, nothing for each token, and no long texts of clients."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from support.grammar.grammars import small_vocabulary
from weft import LLM, EngineConfig, Guide, GuideError, RequestError, SamplingParams
from weft.errors import brief
from weft.executor import Executor, Request
from weft.grammar import CompileLimits, GuideCompiler
from weft.grammar.compile.trial import Trial

USES = """
    from weft import LLM, Guide, GuideError, SamplingParams
    with LLM(device="cpu") as llm:
        llm.warm_up()
        llm.generate("one", guide=Guide.regex("[a-z]{4}"), sampling=SamplingParams(max_tokens=8))
        try:
            llm.generate("two", guide=Guide.regex("(" * 400))
        except GuideError:
            pass
"""


def texts(caplog: pytest.LogCaptureFixture, logger: str, level: int) -> list[str]:
    """Messages of loggers below `logger`, of one level."""
    return [r.getMessage() for r in caplog.records if r.name.startswith(f"{logger}.") and r.levelno == level]


def test_the_package_has_no_handler_of_its_own() -> None:
    assert [type(handler) for handler in logging.getLogger("weft").handlers] == [logging.NullHandler]


@pytest.mark.slow
def test_a_program_that_asks_for_no_logs_gets_none() -> None:
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(USES)], capture_output=True, text=True, timeout=240
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_a_handler_hears_of_the_engine_and_of_no_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "weft")
    with LLM(device="cpu", engine=EngineConfig(max_batch=2)) as llm:
        llm.warm_up()
        (built,) = texts(caplog, "weft.client", logging.INFO)
        assert built.startswith("engine built: ") and "(Llama) on cpu, " in built and " pages of " in built
        (warm,) = texts(caplog, "weft.engine", logging.INFO)
        assert warm.startswith("warm: ") and " graphs in " in warm and not warm.startswith("warm: 0 ")
        caplog.clear()
        llm.generate(["a"] * 4, guide=Guide.regex("[a-z]{20}"), sampling=SamplingParams(max_tokens=40))
        assert not [record for record in caplog.records if record.name.startswith("weft")]


def test_what_fails_is_logged_without_long_texts(caplog: pytest.LogCaptureFixture) -> None:
    class Fails:
        def accept(self, token: int) -> bool:
            raise ValueError("said\n" * 1000)

        def fill(self, row: object) -> bool:
            return False

        def is_terminated(self) -> bool:
            return False

    caplog.set_level(logging.DEBUG, "weft")
    with LLM(device="cpu") as llm, GuideCompiler(small_vocabulary()) as compiler:
        with pytest.raises(RequestError):
            llm.generate("a", guide=Guide.matcher(Fails), sampling=SamplingParams(max_tokens=4))
        with pytest.raises(GuideError):
            compiler.compile(Guide.lark("start: " + "missing " * 2000))
    (failed,) = texts(caplog, "weft.engine", logging.WARNING)
    assert failed.startswith("request ") and " failed: GuideStateError: " in failed
    (refused,) = texts(caplog, "weft.grammar", logging.WARNING)
    assert refused.startswith("guide (lark) refused: ")
    for text in (failed, refused):
        assert len(text) < 300 and text.isprintable()


@pytest.mark.slow
def test_a_helper_process_that_died_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    trial = Trial(small_vocabulary(), "xgrammar")
    try:
        trial.wait()
        lost = trial.pid
        os.kill(lost, signal.SIGKILL)
        trial.run(Guide.regex("replaced"), CompileLimits())
        assert [text for text in texts(caplog, "weft.grammar", logging.WARNING) if str(lost) in text]
    finally:
        trial.close()


def test_a_loop_that_fails_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("planted in the loop")

    with Executor() as executor:
        monkeypatch.setattr("weft.engine.engine.Engine.step", fails)
        (response,) = executor.await_responses(executor.enqueue_request(Request([0, 292], max_tokens=4)))
        assert response.has_error
    (record,) = [r for r in caplog.records if r.name.startswith("weft.client") and r.levelno == logging.ERROR]
    assert "planted in the loop" in record.getMessage()
    assert record.exc_info is not None and record.exc_info[0] is RuntimeError


def test_texts_in_logs_are_one_short_line() -> None:
    assert brief("short") == "short"
    assert brief("a\nb\x1b[31m") == "a\\nb\\x1b[31m"
    assert len(brief("x" * 10_000)) == len(brief("\n" * 10_000)) == 200
