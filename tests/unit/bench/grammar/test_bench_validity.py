"""`weft bench validity` on schemas of its own: finished answers satisfy them, whatever words they were rewritten in."""

from __future__ import annotations

import json
from pathlib import Path

from weft.core import Output
from weft_bench.grammar.validity import Judged, judge, run

SCHEMAS = {
    "one": {
        "oneOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 5}, {"type": "null"}]
    },
    "if": {
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "size": {"type": "integer"}},
        "required": ["kind"],
        "if": {"properties": {"kind": {"const": "a"}}},
        "then": {"required": ["size"]},
        "else": {"not": {"required": ["size"]}},
        "additionalProperties": False,
    },
    "not": {"type": "string", "maxLength": 3, "not": {"enum": ["", "a"]}},
    "needs": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}},
        "dependentRequired": {"a": ["b"]},
        "minProperties": 1,
        "additionalProperties": False,
    },
}


def test_finished_answers_are_valid(tmp_path: Path) -> None:
    source = tmp_path / "schemas.jsonl"
    lines = [json.dumps({"name": name, "schema": schema}) for name, schema in SCHEMAS.items()]
    source.write_text("\n".join(lines))
    report = run(source, each=8, max_tokens=64, drafters=["EAGLE3", "n-gram"])
    assert report.summary["schemas"] == len(SCHEMAS)
    assert [row["invalid"] + row["error"] for row in report.rows] == [0, 0]
    assert all(row["valid"] >= 16 for row in report.rows)


def test_what_is_invalid_is_told() -> None:
    output = Output([], text='"a"', finish_reason="stop")
    assert judge(SCHEMAS["not"], output) == Judged("invalid", '"a"')
    output.text = '"b"'
    assert judge(SCHEMAS["not"], output).verdict == "valid"
    output.finish_reason = "length"
    assert judge(SCHEMAS["not"], output).verdict == "cut"
