"""Programs that use the Executor API as TensorRT-LLM's examples in Python do: every option, and what comes of it."""

from __future__ import annotations

import csv
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from support.engine.oracle import Reference
from support.products import each_value, pairwise

PROGRAMS = Path(__file__).parent / "programs"
ROWS = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4], list(range(1, 11))]
PERSON = "Text: Michael Jordan was born in 1963.\nSchema: {schema}\nJSON: "
SCHEMA = {
    "type": "object",
    "properties": {"last_name": {"type": "string"}, "year_of_birth": {"type": "integer"}},
    "required": ["last_name", "year_of_birth"],
    "additionalProperties": False,
}

Run = Callable[..., list[str]]
Plain = Callable[[Sequence[int], int], Reference]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The lines that a program prints, in this process."""

    def lines(name: str, *arguments: object) -> list[str]:
        path = PROGRAMS / f"{name}.py"
        monkeypatch.setattr("sys.argv", [str(path), *map(str, arguments)])
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return lines


def run_apart(name: str, *arguments: object, **environment: str) -> list[str]:
    """The lines that a program prints, in a process of its own: as a user starts it."""
    command = [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, arguments)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_basic(run: Run, model_path: Path, plain: Plain) -> None:
    (line,) = run("basic", "--model_path", model_path)
    assert json.loads(line) == [[1, 2, 3, 4, *plain([1, 2, 3, 4], 10).tokens]]


@pytest.mark.slow
def test_basic_in_a_process_of_its_own(model_path: Path, plain: Plain) -> None:
    """The executor is not shut down, and the program ends all the same."""
    (line,) = run_apart("basic", "--model_path", model_path)
    assert json.loads(line) == [[1, 2, 3, 4, *plain([1, 2, 3, 4], 10).tokens]]


@pytest.fixture
def advanced(run: Run, model_path: Path, tmp_path: Path) -> Callable[..., list[list[int]]]:
    """The rows of tokens that `advanced.py` writes under some options."""
    asked, answered = tmp_path / "input.csv", tmp_path / "output.csv"
    asked.write_text("".join(", ".join(map(str, row)) + "\n" for row in ROWS))

    def rows(*options: object) -> list[list[int]]:
        files = ("--input_tokens_csv_file", asked, "--output_tokens_csv_file", answered)
        (line,) = run("advanced", "--model_path", model_path, *files, *options)
        assert line.endswith(str(answered))
        with answered.open() as file:
            return [[int(cell) for cell in row] for row in csv.reader(file)]

    return rows


@pairwise
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("exclude", [False, True])
def test_advanced(
    streaming: bool, exclude: bool, advanced: Callable[..., list[list[int]]], plain: Plain
) -> None:
    """A stream never holds the prompt."""
    options = ["--streaming"] * streaming + ["--exclude_input_from_output"] * exclude
    prompts = [[] for _ in ROWS] if streaming or exclude else ROWS
    expected = [prompt + plain(row, 10).tokens for prompt, row in zip(prompts, ROWS, strict=True)]
    assert advanced(*options) == expected


def test_advanced_with_another_length(advanced: Callable[..., list[list[int]]], plain: Plain) -> None:
    expected = [row + plain(row, 3).tokens for row in ROWS]
    assert advanced("--max_tokens", 3, "--timeout_ms", 20000) == expected


def test_advanced_with_beams(advanced: Callable[..., list[list[int]]]) -> None:
    """Each beam is a row. A stream gives beams whole in every response, so that a row ends with the beam."""
    whole = advanced("--beam_width", 2)
    assert len(whole) == 2 * len(ROWS)
    for i, prompt in enumerate(ROWS):
        first, second = whole[2 * i : 2 * i + 2]
        assert first[: len(prompt)] == second[: len(prompt)] == prompt
        assert len(first) == len(second) == len(prompt) + 10
        assert first != second
    answers = advanced("--beam_width", 2, "--exclude_input_from_output")
    assert answers == [row[len(ROWS[i // 2]) :] for i, row in enumerate(whole)]
    streamed = advanced("--beam_width", 2, "--streaming")
    assert [row[-10:] for row in streamed] == answers


def test_debug(run: Run, model_path: Path, plain: Plain) -> None:
    """The tensor that is asked for is kept; the numbers of the requests may be with it."""
    said, *kept = run("debug", "--model_path", model_path)
    assert json.loads(said) == [[1, 2, 3, 4, *plain([1, 2, 3, 4], 2).tokens]]
    lengths = [line for line in kept if "request_ids" not in line]
    assert lengths == ["iteration 0 sequence_length [4]", "iteration 1 sequence_length [5]"]


@pytest.mark.slow
def test_debug_with_files(model_path: Path, tmp_path: Path, plain: Plain) -> None:
    said, *written = run_apart("debug", "--model_path", model_path, "--dump_tensors", TMPDIR=str(tmp_path))
    assert json.loads(said) == [[1, 2, 3, 4, *plain([1, 2, 3, 4], 2).tokens]]
    lengths = [line for line in written if "request_ids" not in line]
    assert lengths == [f"iteration_{i} sequence_length.npy [{4 + i}]" for i in range(2)]


def processed(run: Run, model_path: Path, *options: object) -> list[tuple[int, int, int, str]]:
    """Request, beam, number of tokens and text of each answer."""
    lines = run("logits_processor", "-t", model_path, "-e", model_path, *options)
    found = [re.fullmatch(r"request (\d+) beam (\d+) \((\d+) tokens\): (.*)", line) for line in lines]
    return [(int(m[1]), int(m[2]), int(m[3]), m[4]) for m in found if m is not None]


@each_value
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("beam_width", [1, 2])
def test_logits_processor(batched: bool, beam_width: int, run: Run, model_path: Path) -> None:
    """Every second client is held to the schema in each of its beams, the others say one token."""
    options = ["--batch_size", 4, "--beam_width", beam_width, "--max_tokens", 60]
    answers = processed(run, model_path, *options, *(["--lpp_batched"] if batched else []))
    assert [(request, beam) for request, beam, _, _ in answers] == [
        (request, beam) for request in range(4) for beam in range(beam_width)
    ]
    for request, beam, num_tokens, text in answers:
        if request % 2 == 0:
            if beam == 0:
                assert num_tokens == 60
                assert len(set(text)) == 1
            continue
        person = json.loads(text)
        assert person.keys() == {"last_name", "year_of_birth"}
        assert isinstance(person["year_of_birth"], int)
    assert len({text for request, _, _, text in answers if request == 1}) == beam_width


def test_logits_processor_by_default(run: Run, model_path: Path) -> None:
    (only,) = processed(run, model_path)
    assert only[:3] == (0, 0, 25)


def guided(run: Run, model_path: Path, kind: str, guide: str | None, *options: object) -> tuple[str, str]:
    """Why the answer ended, and the answer."""
    said = [] if guide is None else ["--guide", guide]
    reason, *lines = run("guided", "--model_path", model_path, "--guide_type", kind, *said, *options)
    return reason, "\n".join(lines)


@each_value
@pytest.mark.parametrize("backend", ["XGRAMMAR", "LLGUIDANCE"])
@pytest.mark.parametrize("kind", ["JSON", "JSON_SCHEMA"])
def test_guided_json(kind: str, backend: str, run: Run, model_path: Path) -> None:
    prompt = PERSON.format(schema='{"last_name": string, "year_of_birth": integer}')
    guide = None if kind == "JSON" else json.dumps(SCHEMA)
    options = ("--prompt", prompt, "--backend", backend)
    reason, text = guided(run, model_path, kind, guide, *options)
    assert reason == "END_ID"
    value = json.loads(text)
    if kind == "JSON_SCHEMA":
        assert value.keys() == {"last_name", "year_of_birth"}
        assert isinstance(value["year_of_birth"], int)


def test_guided_regex(run: Run, model_path: Path) -> None:
    reason, text = guided(run, model_path, "REGEX", "[0-9]{4}-[0-9]{2}")
    assert reason == "END_ID"
    assert re.fullmatch(r"\d{4}-\d{2}", text)


def test_guided_grammar(run: Run, model_path: Path) -> None:
    reason, text = guided(run, model_path, "EBNF_GRAMMAR", 'root ::= ("red" | "green") " " ("cup" | "hat")')
    assert reason == "END_ID"
    assert text in {f"{colour} {thing}" for colour in ("red", "green") for thing in ("cup", "hat")}


def test_guided_with_little_room(run: Run, model_path: Path) -> None:
    reason, text = guided(run, model_path, "REGEX", "[0-9]{40}", "--max_tokens", 3)
    assert reason == "LENGTH"
    assert re.fullmatch(r"\d{3,}", text)
