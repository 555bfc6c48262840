from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.engine.family_report import RESULTS, Recorder, Report

OPTION = "--models-report"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, type=Path, help="write the results of the families that run to this file")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption(OPTION, default=None)
    if path is not None and not hasattr(
        config, "workerinput"
    ):  # with pytest-xdist, the process that has all reports
        config.pluginmanager.register(Report(path))


@pytest.fixture
def recorder(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Recorder:
    is_report = request.config.getoption(OPTION, default=None) is not None
    return Recorder(record_property, None if is_report else json.loads(RESULTS.read_text()))
