"""Collects the results of families, for `tools/docs/models.py`: `pytest tests/e2e/models --models-report FILE`."""

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

RESULTS = Path(__file__).parent / "results.json"
OPTION, PROPERTY = "--models-report", "family"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, type=Path, help="write the results of the families that run to this file")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption(OPTION, default=None)
    if path is not None and not hasattr(
        config, "workerinput"
    ):  # with pytest-xdist, the process that has all reports
        config.pluginmanager.register(_Report(path))


class _Report:
    """Joins the results of the tests by family."""

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
        refused = {name: result["reason"] for name, result in sorted(self.parts["refused"].items())}
        data = {
            "transformers": transformers.__version__,
            "families": dict(sorted(self.parts["families"].items())),
            "others": dict(sorted(self.parts["others"].items())),
            "refused": refused,
            "not built": sorted(UNBUILT),
        }
        self.path.write_text(json.dumps(data, indent=1) + "\n")


class Recorder:
    """Records the results of a test. If no report is written, compares them with the report in the repository."""

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
            assert {key: known.get(key) for key in facts} == facts, "run python tools/docs/models.py --run"

    def refused(self, name: str, reason: str) -> None:
        self._record(PROPERTY, {"part": "refused", "name": name, "result": {"reason": reason}})
        if self._known is not None:
            assert self._known["refused"].get(name) == reason, "run python tools/docs/models.py --run"


@pytest.fixture
def recorder(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Recorder:
    is_report = request.config.getoption(OPTION, default=None) is not None
    return Recorder(record_property, None if is_report else json.loads(RESULTS.read_text()))
