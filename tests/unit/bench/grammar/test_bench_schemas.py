"""The schema benchmark: its figures on schemas whose verdicts are known, and what becomes of files that go wrong."""

from __future__ import annotations

import json
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from weft.errors import InputError
from weft_bench.grammar import schema_process
from weft_bench.grammar.schema_files import SchemaFile, TextTokens, read, some, text_of
from weft_bench.grammar.schema_process import JudgeProcess
from weft_bench.grammar.schema_run import Compiled, Settings, Walked
from weft_bench.grammar.schemas import SchemaReport, kind_of, run
from weft_bench.vocabulary import synthetic_vocabulary

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TESTS = [
    {"valid": True, "data": {"name": "Ada Lovelace", "age": 36}},
    {"valid": True, "data": {"name": "Zoë \ud83d", "age": -1}},
    {"valid": False, "data": {"name": "Ada"}},
    {"valid": False, "data": {"name": 1, "age": 1}},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that compile, that are refused, and that are no schemas, in two splits."""
    folder = tmp_path_factory.mktemp("schemas")
    (folder / "people---person.json").write_text(json.dumps({"schema": PERSON, "tests": TESTS}))
    (folder / "people---wrong.json").write_text(json.dumps({"schema": {"type": "objekt"}, "tests": TESTS}))
    (folder / "other").mkdir()
    (folder / "other" / "broken.json").write_text('{"schema": ')
    (folder / "other" / "list.json").write_text("[1]")
    (folder / "other" / "any.json").write_text(
        json.dumps({"schema": {"type": "integer"}, "tests": [{"valid": True, "data": 7}]})
    )
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> SchemaReport:
    return run(folder, synthetic_vocabulary(600), backends=["xgrammar"], timeout_s=60)


def test_the_verdicts_are_counted(report: SchemaReport) -> None:
    row = report.rows[0]
    assert (row["backend"], row["schemas"], row["compiled_pct"]) == ("xgrammar", 5, 40.0)
    assert (row["refused"], row["unreadable"], row["timeout"], row["crashed"], row["error"]) == (
        1,
        2,
        0,
        0,
        0,
    )
    assert (row["valid"], row["valid_accepted_pct"]) == (3, 100.0)
    assert (row["invalid"], row["invalid_refused_pct"]) == (2, 100.0)
    assert row["all_valid_accepted_pct"] == 40.0
    assert row["mask_unlike_accept"] == row["failed_instances"] == 0
    assert row["masks"] > 40
    assert 0 < row["mask_p50_us"] <= row["mask_p99_us"] <= row["mask_max_us"]
    assert 0 < row["compile_p50_ms"] <= row["compile_max_ms"]


def test_splits_and_problems_are_told(report: SchemaReport, tmp_path: Path) -> None:
    assert [(row["split"], row["schemas"], row["valid"]) for row in report.splits] == [
        ("other", 3, 1),
        ("people", 2, 2),
    ]
    assert report.splits[0]["invalid_refused_pct"] is None
    outcomes = {problem["name"]: problem["outcome"] for problem in report.problems}
    assert outcomes == {"broken": "unreadable", "list": "unreadable", "people---wrong": "refused"}
    assert sum(kind["count"] for kind in report.kinds) == 3
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    report.show(console)
    console.file.close()
    assert "compiled" in console.export_text()
    written = json.loads(report.write(tmp_path).read_text())
    assert written["summary"]["schemas"] == 5
    assert written["splits"][1]["split"] == "people"
    assert "machine" in written and "commit" in written


def test_lines_are_read_like_files(tmp_path: Path) -> None:
    lines = [
        json.dumps({"name": "a", "split": "s", "schema": True, "tests": TESTS}),
        "",
        "{",
        '"text"',
        '{"a": 1}',
    ]
    path = tmp_path / "schemas.jsonl"
    path.write_text("\n".join(lines))
    good, *bad = read(path)
    assert (good.name, good.split, good.problem, len(good.tests)) == ("a", "s", "", 4)
    assert [bool(file.problem) for file in bad] == [True, True, True]
    assert some(read(path), 2, seed=1) == some(read(path), 2, seed=1)
    assert len(some(read(path), 2, seed=1)) == 2
    (tmp_path / "single.json").write_text(json.dumps({"schema": PERSON}))
    assert [file.name for file in read(tmp_path)] == ["single", *(file.name for file in read(path))]
    (tmp_path / "empty").mkdir()
    for nothing in (tmp_path / "missing", tmp_path / "empty"):
        with pytest.raises(InputError, match=r"\.jsonl"):
            read(nothing)
    with pytest.raises(InputError, match="not a style"):
        run(path, synthetic_vocabulary(300), style="wide")
    with pytest.raises(InputError, match="not one of the grammars"):
        run(path, synthetic_vocabulary(300), backends=["yacc"])


def test_texts_are_spelled_whole() -> None:
    vocabulary = synthetic_vocabulary(2000)
    for style in ("spaced", "compact"):
        text = text_of({"a": ["wärp", 1.5, None, "\ud800"]}, style)
        tokens = TextTokens(vocabulary).encode(text)
        assert vocabulary.decode(tokens) == text.encode()
        assert json.loads(text) == {"a": ["wärp", 1.5, None, "\ud800"]}


def misbehave(connection: Connection, settings: Settings, log: str) -> None:
    """In the judge's place: does what the file's name says."""
    connection.send("ready")
    while True:
        file = connection.recv()
        if file.name == "slow":
            time.sleep(600)
        if file.name == "crash":
            Path(log).write_text("first words\nlast words\n")
            os.kill(os.getpid(), signal.SIGKILL)
        connection.send(Compiled(0.5, 0.25, 100, 0))
        if file.name == "slow walk":
            time.sleep(600)
        connection.send(Walked([(True, True)]))


@pytest.mark.slow
def test_what_hangs_or_crashes_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_process, "serve", misbehave)
    monkeypatch.setattr(schema_process, "WALK_LIMITS", 1)
    monkeypatch.setattr(JudgeProcess, "start_method", "fork")  # its process needs nothing but its name
    with JudgeProcess(Settings("xgrammar", synthetic_vocabulary(300)), timeout_s=1) as process:
        outcomes: list[Any] = [
            process.judge(SchemaFile(name, "")) for name in ("slow", "good", "crash", "slow walk")
        ]
    assert [result.outcome for result in outcomes] == ["timeout", "compiled", "crashed", "timeout"]
    assert "compiling took longer than 1 s" in outcomes[0].text
    assert outcomes[2].text == "SIGKILL: last words"
    assert outcomes[3].compiled is not None and outcomes[3].walked is None


def test_kinds_leave_out_what_is_quoted() -> None:
    one = kind_of("JSON schema at #/properties/a: type is 'objekt'; it must be one of 7")
    assert one == kind_of('JSON schema at #/items: type is "b\'c"; it must be one of 12')
    assert "objekt" not in one
