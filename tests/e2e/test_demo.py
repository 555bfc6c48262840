"""`weft demo`: what it says is so, and it reads well in a terminal, in a pipe and without colours."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from weft import demo
from weft.demo import breaks, picture
from weft.demo.forms import FORMS
from weft.errors import InputError
from weft.llm import LLM
from weft.trace import Slice
from weft.trace.timeline import overlap

COLOUR = re.compile(r"\x1b\[[\d;]*m")
WIDTH = 80


@pytest.fixture(scope="module")
def few_prompts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "PROMPTS", 2)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def piped(few_prompts: None, folder: Path) -> str:
    """All that the command says, as in a pipe of 80 columns."""
    text = StringIO()
    demo.run(folder, Console(file=text, width=WIDTH, highlight=False))
    return text.getvalue()


def test_a_pipe_has_whole_lines_that_fit(piped: str) -> None:
    lines = piped.splitlines()
    assert "\x1b" not in piped and "\r" not in piped
    assert [line for line in lines if len(line) > WIDTH and not line.startswith(("trace ", "picture "))] == []
    assert [line for line in lines if re.search(r"[╯┘].", line)] == []
    assert piped.count("─ answer ─") == 1


def test_answers_without_a_guide_break_before_the_readers_eyes(piped: str) -> None:
    told = re.search(
        r"Breaks its schema: (\d) of (\d) answers without a guide, (\d) of \d with one",
        " ".join(piped.split()),
    )
    assert told is not None
    free, forms, guided = map(int, told.groups())
    assert forms == len(FORMS) and guided == 0
    assert 3 <= free == len(re.findall("^no guide ", piped, re.MULTILINE))
    assert piped.count(breaks.OPEN) == piped.count(breaks.CLOSE) == free + 1  # and where they are explained


def test_what_drafts_gain_is_measured_over_the_same_texts(piped: str) -> None:
    per_iteration = re.findall(r"│ (none|JSON schema) +│ EAGLE3, 3 │ +\d+ │ +([\d.]+) │", piped)
    assert [guide for guide, _ in per_iteration] == ["none", "JSON schema"]
    assert all(float(tokens) > 1.5 for _, tokens in per_iteration)
    words = " ".join(piped.split())
    assert re.search(r"drafts give [\d.]+ times the tokens/s", words) and "the same text in 2 of 2" in words


def test_the_picture_begins_at_0_and_says_what_lies_beside_what(piped: str, folder: Path) -> None:
    events = json.loads((folder / "demo-trace.json").read_text())["traceEvents"]
    assert {"grammar stream", "model stream"} <= {event["args"].get("name") for event in events}
    pytest.importorskip("matplotlib")
    svg = (folder / "demo-trace.svg").read_text()
    assert svg.count(">0</text>") == 2
    for word in (
        "target forward",
        "draft forward",
        "fetch",
        "extend",
        "commit",
        picture.THREADS,
        "microseconds",
    ):
        assert word in svg
    assert "lie between" in svg or "lie beside" in svg
    assert all(sentence in svg and sentence in " ".join(piped.split()) for sentence in picture.WHY)


def test_overlap_is_told_as_it_is() -> None:
    def of(grammar_begin: float) -> list[Slice]:
        host = [Slice("commit", "host", 2, 0, grammar_begin, grammar_begin + 10)]
        return [Slice("target_forward", "kernel", 1, 0, 0, 100), *host]

    assert picture.told(overlap(of(95))) == "50% of the grammar's 10 us lie beside the model's work"
    assert picture.told(overlap(of(100))).startswith("the grammar's 10 us lie between")


@pytest.mark.slow
def test_without_matplotlib_the_rest_is_there(
    few_prompts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = StringIO()
    demo.run(tmp_path, Console(file=text, width=WIDTH))
    assert 'no picture: the picture needs matplotlib: pip install "weft-decoding[plot]"' in text.getvalue()
    assert (tmp_path / "demo-trace.json").exists()


def test_a_terminal_has_colours_unless_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM()
    shown = {}
    for no_color in (False, True):
        text = StringIO()
        console = Console(
            file=text, width=WIDTH, force_terminal=True, color_system="standard", no_color=no_color
        )
        breaks.show(console, llm)
        shown[no_color] = text.getvalue()
    llm.close()
    assert "\x1b[1;31m" in shown[False] and "\x1b[32m" in shown[False]
    assert not re.search(r"\x1b\[(\d;)*3\dm", shown[True])
    assert COLOUR.sub("", shown[False]) == COLOUR.sub("", shown[True])


@pytest.mark.slow
def test_the_command_writes_to_a_pipe(tmp_path: Path) -> None:
    environment = {**os.environ, "COLUMNS": str(WIDTH)}
    command = [sys.executable, "-m", "weft.cli", "demo", "--out", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert run.returncode == 0, run.stderr
    assert run.stderr == "" and "\x1b" not in run.stdout
    assert "12 prompts, one at a time" in run.stdout


def test_a_folder_that_can_not_be_made_is_told_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="give --out another folder"):
        demo.run(tmp_path / "file" / "out", Console(file=StringIO()))
