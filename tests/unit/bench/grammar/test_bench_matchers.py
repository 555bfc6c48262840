"""The benchmarks of matchers and of workers run on small sizes and report what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import matchers
import workers
from library_calls import OWN_CALLS, Place
from weft import registry
from weft.errors import InputError
from weft_bench.vocabulary import synthetic_vocabulary


def test_every_library_is_compared(tmp_path: Path) -> None:
    report = matchers.run(vocab=600, batches=(2,), texts=2, repeat=1)
    assert [(row["backend"], row["call"]) for row in report.rows] == [
        (backend, call) for backend in OWN_CALLS for call in ("walk", "batch of 2")
    ]
    for row in report.rows:
        assert row["own_us"] == min(row["all_own_us"].values()) == row["all_own_us"][row["own_way"]]
        assert row["native_over_own"] == pytest.approx(row["native_us"] / row["own_us"])
    written = json.loads(report.write(tmp_path).read_text())
    assert written["summary"]["texts"] == "records"
    assert set(OWN_CALLS) <= set(registry.GRAMMARS)


def test_texts_come_from_schemas_too(tmp_path: Path) -> None:
    tests = [
        {"valid": False, "data": 1},
        {"valid": True, "data": "a text of some words, and then a few more"},
    ]
    lines = [
        json.dumps({"schema": {"type": "string"}, "tests": tests}),
        json.dumps({"schema": {"type": "null"}}),
    ]
    (tmp_path / "s.jsonl").write_text("\n".join(lines))
    vocabulary = synthetic_vocabulary(400)
    (text,) = matchers.texts_of("xgrammar", vocabulary, tmp_path / "s.jsonl", 5)
    assert vocabulary.decode(text.tokens) == json.dumps(tests[1]["data"]).encode()
    places, steps = matchers.places_of([text], batch=3, steps=4)
    assert len(steps) == 5 and all(len(of_rows) == 3 for of_rows in steps)
    for row, place in enumerate(places):
        assert isinstance(place, Place)
        taken = [*place.taken, *(of_rows[row] for of_rows in steps)]
        assert taken == text.tokens[: len(taken)]
    with pytest.raises(InputError, match="take other schemas"):
        matchers.places_of([text], batch=1, steps=1000)


def test_each_number_of_workers_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "STEPS", {"light": 2, "heavy": 2})
    report = workers.run(vocab=600, batches=(4,), workers=(0, 2), repeat=1, texts=2)
    assert [(row["masks"], row["batch"], row["workers"]) for row in report.rows] == [
        ("light", 4, 0),
        ("light", 4, 2),
        ("heavy", 4, 0),
        ("heavy", 4, 2),
    ]
    assert all(row["commit_us"] > 0 and row["speedup"] > 0 for row in report.rows)
