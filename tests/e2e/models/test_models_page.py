"""docs/models.md's tables are what tools/docs/models.py makes of the results of `test_families.py`."""

from __future__ import annotations

import importlib.util
import json
from types import ModuleType
from typing import Any

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from support.engine.family_report import HOW, RESULTS
from support.families import FAMILIES, HYBRIDS, REFUSED, UNBUILT

ROOT = RESULTS.parents[3]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("models", ROOT / "tools" / "docs" / "models.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(RESULTS.read_text())
    return data


def test_the_page_is_what_the_tool_writes(tool: ModuleType, results: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    assert tool.rewritten(page, results) == page, "run `python tools/docs/models.py`"


def test_every_family_has_a_result(results: dict[str, Any]) -> None:
    assert results["transformers"] == transformers.__version__, HOW
    assert set(results["families"]) == {*FAMILIES, *HYBRIDS}, HOW
    assert set(results["refused"]) >= set(REFUSED), HOW
    assert results["not built"] == sorted(UNBUILT), HOW
    known = {*results["families"], *results["others"], *results["refused"], *UNBUILT}
    assert set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) <= known, HOW


def test_every_family_was_checked_in_all_parts(results: dict[str, Any]) -> None:
    """With drafts, guides, found prefixes and prompts in parts, beams and preemption, each in some setting."""
    parts = {
        "chunks",
        "found prefixes",
        "guided",
        "log-probabilities",
        "logits of prompts",
        "several sequences",
    }
    for name, family in results["families"].items():
        assert parts <= set(family["done"]), name
    done = [set(family["done"]) for family in results["families"].values()]
    assert {"beams", "preemption"} <= set().union(*done)
