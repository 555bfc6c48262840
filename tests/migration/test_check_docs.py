"""docs/executor-fields.md's part "Fields" is what tools/docs/executor_fields.py makes of both sides' names."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from weft.migration import ours
from weft.migration.api import load
from weft.migration.verdict import OTHERWISE, REFUSED, State, judge, judge_class, other_default

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "docs" / "executor_fields.py"
PAGE = (ROOT / "docs" / "executor-fields.md").read_text()
API = load()
HOW = "run `python tools/docs/executor_fields.py`, and say what new rows are where they say '?'"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("executor_fields", TOOL)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, made)  # its dataclass looks itself up
        spec.loader.exec_module(made)
    return made


def rows(page: str) -> dict[str, dict[str, str]]:
    """Heading -> name -> the last cell of its row, read without the tool."""
    found: dict[str, dict[str, str]] = {}
    heading = ""
    for line in page.partition("\n## Fields\n")[2].splitlines():
        if line.startswith("### "):
            heading = line.removeprefix("### ")
            found[heading] = {}
        elif line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            found[heading][re.split(r"[`(]", cells[0])[1]] = cells[-1]
    return found


def test_the_page_is_what_the_tool_writes(tool: ModuleType) -> None:
    assert tool.rewritten(PAGE) == PAGE, f"docs/executor-fields.md is not as the classes are; {HOW}"
    assert not tool.unsaid(PAGE), HOW


def test_every_name_of_theirs_has_its_row_and_its_state() -> None:
    found = rows(PAGE)
    for name, cls in API.classes.items():
        table = found.get(cls.short)
        if cls.members and judge_class(name).state is State.HAS:
            assert all(f"`{one}`" in found["Enumerations"][cls.short] for one in cls.members)
        elif table is None:
            assert name in found["Others"]
        else:
            assert not set(cls.names()) - set(table), name
            for one in cls.names():
                verdict, text = judge(name, one), table[one]
                assert text.startswith("refused: ") == (verdict.state in (State.REFUSED, State.OLDER)), one
                assert text.startswith("not here: ") == (verdict.state is State.ABSENT), one
                assert not text.startswith("weft's own: "), one
    for one in (*API.functions, *API.attributes, *API.submodules):
        assert one in found["Others"]


def test_every_field_of_ours_has_its_row() -> None:
    found = rows(PAGE)
    for name in ours.classes():
        held = ours.names(ours.class_of(name))  # type: ignore[arg-type]
        fields = [one for one, own in held.items() if own.what == "field"]
        if name not in found:
            text = found["Enumerations"].get(name) or found["Others"].get(name)
            assert text is not None, f"{name} is nowhere; {HOW}"
            continue
        assert list(found[name])[: len(fields)] == fields
        is_theirs = API.find(name) is not None
        for one in fields:
            is_own = judge(name, one).state is State.OWN and is_theirs
            assert found[name][one].startswith("weft's own: ") == is_own, one


def test_reasons_are_those_of_the_classes() -> None:
    found = rows(PAGE)
    for key, why in REFUSED.items():
        cls, _, name = key.partition(".")
        if cls in found and judge(cls, name).state is State.REFUSED:
            assert found[cls][name] == f"refused: {why}"
    meanings = found["Same name, other meaning"]
    assert set(OTHERWISE) <= set(meanings)
    others = [f"{cls.short}.{one}" for cls in API.classes.values() for one in cls.names()]
    different = [one for one in others if other_default(*one.rsplit(".", 1)) is not None]
    assert set(meanings) == {*OTHERWISE, *different}


def test_words_are_kept_and_what_is_said_by_tables_is_not(tool: ModuleType) -> None:
    changed = PAGE.replace(
        "| `streaming` | `False` | a response for each iteration, with what it added |",
        "| `streaming` | `True` | a response; now and then |",
    )
    page = tool.rewritten(re.sub(r"\| refused: positions.*? \|", "| refused: just so |", changed))
    table = rows(page)["Request"]
    assert table["streaming"] == "a response; now and then" and "| `streaming` | `False` |" in page
    assert table["position_ids"] == f"refused: {REFUSED['Request.position_ids']}"


def test_a_row_without_words_waits_for_them(tool: ModuleType) -> None:
    page = tool.rewritten(PAGE.replace("| `end_id` |", "| `other` |"))
    assert tool.unsaid(page) == ["| `end_id` | `None` | ? |"]
    assert tool.rewritten(page) == page
    assert "`other`" not in page


def test_the_order_of_classes_is_the_pages(tool: ModuleType) -> None:
    before, result, after = re.split(r"(?m)^(?=### Result$|### IterationStats$)", PAGE)
    moved = before + after.replace("### Enumerations", f"{result}### Enumerations")
    assert tool.rewritten(moved) == moved
    assert tool.rewritten(before + after).count("### Result\n") == 1


def test_what_differs_is_said_behind_the_words(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """And does not become part of them."""
    monkeypatch.setitem(OTHERWISE, "Request.end_id", "it is not what it was")
    judge.cache_clear()
    try:
        page = tool.rewritten(PAGE)
        assert tool.rewritten(page) == page
    finally:
        monkeypatch.undo()
        judge.cache_clear()
    was = rows(PAGE)["Request"]["end_id"]
    assert rows(page)["Request"]["end_id"] == f"{was}; *other meaning*: it is not what it was"
    assert rows(page)["Same name, other meaning"]["Request.end_id"] == "it is not what it was"
    assert tool.rewritten(page) == PAGE
