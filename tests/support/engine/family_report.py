"""The results of families that ran, joined by family, for `tools/docs/models.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import transformers

from support.engine.family_runs import Results
from support.families import UNBUILT

RESULTS = Path(__file__).parents[2] / "e2e" / "models" / "results.json"
PROPERTY = "family"
HOW = "run `python tools/docs/models.py --run`, which writes tests/e2e/models/results.json and docs/models.md"


class Report:
    """A plugin of pytest that writes the results of passed tests to a file. Families of which no test passed keep the
    results that the repository has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts: dict[str, dict[str, dict[str, Any]]] = {"families": {}, "others": {}, "refused": {}}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties if report.when == "call" and report.passed else ():
            if name == PROPERTY and isinstance(value, dict):
                self.add(**value)

    def add(self, part: str, name: str, result: dict[str, Any]) -> None:
        """Join the result of one test to the others of its family."""
        known = self.parts[part].setdefault(name, {**result, "settings": [], "done": [], "difference": 0.0})
        known["settings"] = sorted({*known["settings"], *result.get("settings", ())})
        known["done"] = sorted({*known["done"], *result.get("done", ())})
        known["difference"] = max(known["difference"], result.get("difference", 0.0))

    def pytest_sessionfinish(self) -> None:
        known = json.loads(RESULTS.read_text())
        new = {name for part in self.parts.values() for name in part}

        def joined(part: str, results: dict[str, Any]) -> dict[str, Any]:
            kept = {name: result for name, result in known[part].items() if name not in new}
            return dict(sorted({**kept, **results}.items()))

        reasons = {name: result["reason"] for name, result in self.parts["refused"].items()}
        data = {
            "transformers": transformers.__version__,
            "families": joined("families", self.parts["families"]),
            "others": joined("others", self.parts["others"]),
            "refused": joined("refused", reasons),
            "not built": sorted(UNBUILT),
        }
        self.path.write_text(json.dumps(data, indent=1) + "\n")


class Recorder:
    """Records the result of a test. If no report is written, it compares the result with the repository's."""

    def __init__(self, record: Callable[[str, object], None], known: dict[str, Any] | None) -> None:
        self._record, self._known = record, known

    def passed(self, part: str, name: str, results: Results) -> None:
        assert results.facts is not None
        facts = json.loads(json.dumps(asdict(results.facts)))
        result = {
            **facts,
            "settings": [str(results.setting)],
            "done": sorted(results.done),
            "difference": results.difference,
        }
        self._record(PROPERTY, {"part": part, "name": name, "result": result})
        if self._known is not None:
            known = self._known[part].get(name, {})
            assert {key: known.get(key) for key in facts} == facts, HOW

    def refused(self, name: str, reason: str) -> None:
        self._record(PROPERTY, {"part": "refused", "name": name, "result": {"reason": reason}})
        if self._known is not None:
            assert self._known["refused"].get(name) == reason, HOW
