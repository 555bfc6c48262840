"""`weft chat`: a conversation in a terminal, and a message from a pipe."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from weft import LLM, EngineConfig, Output, Piece, SamplingParams
from weft.cli import app
from weft.cli.answers import Run, print_pieces
from weft.cli.chat import Chat, read_message
from weft.cli.inputs import NamedPrompt
from weft.errors import InputError, for_terminal

LENGTH = 128


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(device="cpu", engine=EngineConfig(max_batch=1, max_seq_len=LENGTH)) as llm:
        yield llm


@pytest.fixture
def chat(llm: LLM) -> Chat:
    return Chat(llm, SamplingParams(max_tokens=8))


def run(*arguments: str, text: str) -> Any:
    return CliRunner().invoke(app, ["chat", "--device", "cpu", *arguments], input=text)


def test_a_pipe_is_one_message(llm: LLM) -> None:
    expected = llm.chat([{"role": "user", "content": "Hello\nyou"}], SamplingParams(max_tokens=5)).text
    result = run("-n", "5", text="Hello\nyou\n")
    assert (result.exit_code, result.stdout) == (0, expected + "\n"), result.output
    generated = CliRunner().invoke(
        app, ["generate", "--device", "cpu", "--chat", "-n", "5"], input="Hello\nyou\n"
    )
    assert generated.stdout == result.stdout


def test_a_guide_applies_to_the_answer() -> None:
    result = run("--regex", "[0-9]{3}", text="Hello")
    assert result.exit_code == 0 and result.stdout.strip().isdigit()
    cut = run("--regex", "[0-9]{30}", "-n", "2", text="Hello")
    assert cut.exit_code == 3 and "--on-length close" in cut.stderr
    assert isinstance(run(text="").exception, InputError)


def test_the_model_is_an_argument() -> None:
    assert run("weft-tiny", "-n", "2", text="Hello").exit_code == 0
    assert "nowhere: no such directory" in str(run("nowhere", text="Hello").exception)
    assert "two models: 'one', and 'two'" in str(run("one", "-m", "two", text="Hello").exception)


def test_turns_follow_each_other(
    chat: Chat, llm: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat.do("system", "Be brief.")
    first = chat.answer("one")
    whole = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}]
    assert first.prompt_token_ids == llm.chat_tokens(whole)
    second = chat.answer("two")
    whole += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "two"}]
    assert second.prompt_token_ids == llm.chat_tokens(whole)
    chat.do("again", "")
    whole.append({"role": "assistant", "content": second.text})  # greedy: the same answer
    chat.do("save", str(tmp_path / "chat.json"))
    assert json.loads((tmp_path / "chat.json").read_text()) == whole
    assert capsys.readouterr().out == f"{first.text}\n{second.text}\n{second.text}\n"
    chat.do("clear", "")
    assert chat.messages == []
    for name, rest, message in (
        ("again", "", "there is no answer yet"),
        ("save", "", "give the name of a file"),
        ("nothing", "", "there is no command /nothing"),
    ):
        with pytest.raises(InputError, match=message):
            chat.do(name, rest)


def test_the_oldest_turns_are_dropped_when_there_is_no_room(
    chat: Chat, llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "Ada Berg is 31 years old. " * 3
    for _ in range(8):
        chat.answer(text)
    said = capsys.readouterr().err
    assert f"the conversation fills {LENGTH} positions; its 2 oldest messages are dropped" in said
    assert [message["role"] for message in chat.messages[-2:]] == ["user", "assistant"]
    assert chat.messages[0]["role"] == "user" and len(chat.messages) < 16
    count = len(chat.messages)
    with pytest.raises(InputError, match=f"the message is too long: the engine has {LENGTH} positions"):
        chat.answer(text * 50)
    assert len(chat.messages) == count


def test_an_interrupt_stops_the_answer_and_keeps_its_text(
    chat: Chat, llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = []

    def interrupted(*_: object, **__: object) -> Iterator[Piece]:
        try:
            yield Piece("half", [5], ["sampled"])
            raise KeyboardInterrupt
        finally:
            closed.append(True)

    monkeypatch.setattr(llm, "stream", interrupted)
    with pytest.raises(KeyboardInterrupt):  # a pipe
        chat.answer("one")
    assert chat.messages == []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert chat.answer("one").finish_reason == "cancelled"
    assert chat.messages[-1] == {"role": "assistant", "content": "half"}
    assert closed == [True, True] and capsys.readouterr().out == "halfhalf\n"


def test_an_exception_leaves_the_conversation_as_it_was(
    chat: Chat, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat.answer("one")
    before = list(chat.messages)

    def fail(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(llm, "stream", fail)
    for repeat in (lambda: chat.answer("two"), chat.again):
        with pytest.raises(KeyboardInterrupt):
            repeat()
        assert chat.messages == before
    monkeypatch.setattr(llm, "chat_tokens", fail)  # earlier still
    with pytest.raises(KeyboardInterrupt):
        chat.again()
    assert chat.messages == before


def test_a_bad_line_does_not_end_the_conversation(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: Iterator[Any] = iter(
        [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "/AGAIN", "/save ~nobody-here/x", EOFError()]
    )

    def read(*_: object) -> str:
        line = next(lines)
        if isinstance(line, BaseException):
            raise line
        return str(line)

    monkeypatch.setattr("builtins.input", read)
    chat.run()
    shown = capsys.readouterr()
    assert "not UTF-8" in shown.err and "no answer yet" in shown.err and "nobody-here" in shown.err
    assert shown.out == "" and shown.err.startswith("> ")  # stdout is no terminal


def test_a_model_can_not_command_the_terminal(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "a\x1b]0;title\x07\x1b[2J\x9b31m\r\nb\tc\u202ed \U0001f469\u200d\U0001f52c"
    safe = "a\\x1b]0;title\\x07\\x1b[2J\\x9b31m\nb\tc\\u202ed \U0001f469\u200d\U0001f52c"
    assert for_terminal(text) == safe
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(llm, "generate", lambda *_, **__: [Output([], text=text), Output([], text=text)])
    prompts = [NamedPrompt("one", "one"), NamedPrompt("two", "two")]
    Run(llm, None, SamplingParams())(prompts)
    shown = capsys.readouterr().out
    assert shown.count(safe) == 2 and "\x1b" not in shown
    monkeypatch.setenv("TERM", "dumb")
    for piece in (Piece(text, [5], ["sampled"]), Piece("\x1b[2J", [5], ["sampled"])):
        assert print_pieces(llm, iter([piece])).text == piece.text
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\x9b" not in shown and "title\\x07" in shown
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    print_pieces(llm, iter([Piece(text, [5], ["sampled"])]))
    assert capsys.readouterr().out == text + "\n"  # a pipe gets the text as it is


def test_a_message_may_have_several_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*lines: str) -> str:
        left = iter(lines)
        monkeypatch.setattr("builtins.input", lambda *_: next(left))
        return read_message()

    assert read("one", "two") == "one"
    assert read('"""', "one", "two", '"""') == "one\ntwo"
    assert read('"""one', 'two"""') == "one\ntwo"
    assert read('"""one"""') == "one"


def test_a_model_without_a_template_is_refused(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm.tokenizer, "chat_template", None)
    with pytest.raises(InputError, match="no chat template"):
        Chat(llm, SamplingParams()).check()


@pytest.mark.slow
def test_a_session_in_a_terminal() -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-m", "weft.cli", "chat", "--device", "cpu", "-n", "1000"])
    shown = ""

    def until(mark: str, key: bytes = b"") -> None:
        """Read to the end of `mark`. After each second without output, press `key`."""
        nonlocal shown
        end = time.monotonic() + 120
        while mark not in shown:
            assert time.monotonic() < end, shown
            if select.select([terminal], [], [], 1)[0]:
                shown += os.read(terminal, 4096).decode(errors="replace")
            elif key:
                os.write(terminal, key)
        shown = shown.partition(mark)[2]

    try:
        until("weft models get smollm2")  # weft-tiny can't chat
        until("loading weft-tiny")
        until("> ")
        os.write(terminal, b"Hello\n")
        until("tokens/s")
        until("> ")
        until("Ctrl-D leaves", key=b"\x03")  # readline misses an interrupt right after its prompt
        os.write(terminal, b"/help\n")
        until("/system TEXT")
        until(
            "> "
        )  # before readline reads, the terminal itself would take Ctrl-D, and readline would miss it
        os.write(terminal, b"\x04")
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(terminal)
