"""Whatever is changed in a recording is found where it is, and what is no recording is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.grammar.grammars import (
    compiled,
    small_vocabulary,
)
from support.grammar.recorded_loop import SEEDS, changed
from weft import cli
from weft.errors import InputError
from weft.grammar import Guide
from weft.guided.flight import Operation, SlotEntry
from weft.guided.recording import Recording
from weft.replay import replay


def places(
    recording: Recording, name: str, fits: Callable[[SlotEntry], bool]
) -> list[tuple[int, Operation, SlotEntry]]:
    found = [
        (place, operation, entry)
        for place, operation in enumerate(recording.operations)
        for entry in operation.entries
        if operation.name == name and fits(entry)
    ]
    assert len(found) > 3
    return found


def test_a_flipped_draft_is_found_where_it_is(loop: Any) -> None:
    made = loop(4)
    made.run(15)
    recording = made.recorder.recording()
    for place, operation, entry in places(recording, "extend_through", lambda e: len(e.taken) > 0)[::5]:
        drafts = (entry.inputs[0] ^ 1, *entry.inputs[1:])
        found = replay(
            changed(recording, place, entry.slot, inputs=drafts), small_vocabulary(), SEEDS
        ).difference
        assert found is not None
        assert (found.iteration, found.operation, found.slot) == (
            operation.epoch,
            "extend_through",
            entry.slot,
        )
        request = recording.request_of(entry.matcher)
        assert request is not None
        assert found.request == request.id


def test_a_flipped_token_is_found_where_it_is(loop: Any) -> None:
    made = loop(5)
    made.run(15)
    recording = made.recorder.recording()
    fits = lambda e: e.matcher and not e.status and not e.ended and e.inputs[0] == 0  # noqa: E731
    for place, operation, entry in places(recording, "commit", fits)[::5]:
        other = (0, 299)
        found = replay(
            changed(recording, place, entry.slot, inputs=other), small_vocabulary(), SEEDS
        ).difference
        assert found is not None
        assert (found.iteration, found.operation, found.slot) == (operation.epoch, "commit", entry.slot)
        assert "refused" in found.what


def test_a_flipped_hash_is_found_where_it_is(loop: Any) -> None:
    made = loop(6)
    made.run(15)
    recording = made.recorder.recording()
    for name in ("fetch", "extend", "extend_through", "commit"):
        hashed = places(recording, name, lambda e: any(len(row) == 16 for row in e.rows))
        for place, operation, entry in hashed[:: len(hashed) // 3]:
            last = max(i for i, row in enumerate(entry.rows) if len(row) == 16)
            other = f"{int(entry.rows[last], 16) ^ 1:016x}"
            rows = (*entry.rows[:last], other, *entry.rows[last + 1 :])
            found = replay(
                changed(recording, place, entry.slot, rows=rows), small_vocabulary(), SEEDS
            ).difference
            assert found is not None
            assert found.operation.startswith(name)
            assert (found.iteration, found.slot, found.row) == (operation.epoch, entry.slot, last)


def test_another_answer_is_found_when_the_window_begins_behind_it(loop: Any) -> None:
    made = loop(7, iterations=2, guides=[compiled(Guide.regex("[a-z ]{3,900}"))])
    made.run(9)
    recording = made.recorder.recording()
    longest = max(recording.requests, key=lambda r: len(r.tokens))
    requests = tuple(
        replace(r, tokens=(299, *r.tokens[1:])) if r is longest else r for r in recording.requests
    )
    found = replay(replace(recording, requests=requests), small_vocabulary(), range(1)).difference
    assert found is not None
    assert (found.operation, found.request) == ("attach", longest.id)
    assert "token 1 of its answer" in found.what


def test_another_vocabulary_is_refused(loop: Any) -> None:
    made = loop(17)
    made.run(1)
    recording = replace(made.recorder.recording(), fingerprint="0" * 64)
    with pytest.raises(InputError, match="not that of the recording"):
        replay(recording, small_vocabulary())


def broken(data: dict[str, Any], how: str) -> None:
    extends = [o for o in data["operations"] if o["op"] == "extend_through"]
    if how == "format":
        data["format"] = "weft-flight-0"
    elif how == "field":
        del data["guides"]
    elif how == "slot":
        data["operations"][0]["entries"][0]["slot"] = 99
    elif how == "first":
        del data["operations"][0]
    elif how == "drafts":
        extends[0]["argument"] = 9
    elif how == "inputs":
        extends[0]["entries"][0]["inputs"] = [1] * 9
    elif how == "number":
        extends[0]["entries"][0]["inputs"] = [2**70, 1, 1]
    elif how == "order":
        data["operations"] += data["operations"]
    elif how == "token":
        data["requests"][0]["tokens"] = [300]
    elif how == "guide":
        data["requests"][0]["guide"] = 77
    elif how == "operation":
        data["operations"][1]["op"] = "dance"


@pytest.mark.parametrize(
    "how",
    [
        "format",
        "field",
        "slot",
        "first",
        "drafts",
        "inputs",
        "number",
        "order",
        "token",
        "guide",
        "operation",
    ],
)
def test_files_that_are_no_recordings_are_refused(loop: Any, tmp_path: Path, how: str) -> None:
    made = loop(18)
    made.run(4)
    path = made.recorder.write(tmp_path / "flight.json")
    data = json.loads(path.read_text())
    broken(data, how)
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match="not a recording"):
        Recording.load(path)


FIELDS = [
    "reason",
    "versions",
    "model",
    "fingerprint",
    "vocab_size",
    "end_ids",
    "num_slots",
    "max_drafts",
    "sources",
    "guides",
    "requests",
    "operations",
]


@pytest.mark.parametrize(
    "value", ["[]", "{}", "7", '"x"', "true", "Infinity", "[[[[]]]]", '["x"]', "[Infinity]"]
)
def test_a_field_of_another_type_is_refused(loop: Any, tmp_path: Path, value: str) -> None:
    """Every field that holds a value of a type that it can't have is refused with the error of weft."""
    made = loop(18)
    made.run(4)
    path = made.recorder.write(tmp_path / "flight.json")
    data = json.loads(path.read_text())
    wrong = json.loads(value)
    for name in FIELDS:
        same_type = type(data[name]) is type(wrong) or (name == "model" and isinstance(wrong, str))
        if same_type and wrong not in (["x"], [[[[]]]], [float("inf")]):
            continue  # the field may have this value
        if name == "sources" and isinstance(wrong, list):
            continue  # every name is read as text
        path.write_text(json.dumps({**data, name: wrong}))
        with pytest.raises(InputError, match="not a recording"):
            Recording.load(path)


@pytest.mark.parametrize(
    "text",
    [
        '{"format":"weft-flight-1","reason":"x","versions":[]}',
        '{"format":"weft-flight-1","reason":"x"}',
        "[" * 100_000,
    ],
)
def test_text_that_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "flight.json"
    path.write_text(text)
    with pytest.raises(InputError, match="not a recording"):
        Recording.load(path)


def test_a_cut_file_is_refused(loop: Any, tmp_path: Path) -> None:
    made = loop(19)
    made.run(2)
    path = made.recorder.write(tmp_path / "flight.json.gz")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="not a recording"):
        Recording.load(path)
    assert isinstance(CliRunner().invoke(cli.app, ["replay", str(path)]).exception, InputError)
