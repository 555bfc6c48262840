"""No setting does nothing: what can be chosen is read by the code that runs, or any other value is refused."""

from __future__ import annotations

import ast
import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weft import EngineConfig, InputError, SamplingParams, Speculation, executor
from weft.executor.types.refused import NO_EFFECT, REFUSED

PACKAGE = Path(__file__).parents[2] / "python" / "weft"
DECLARED = ("config.py", "core.py", "executor/types/")
NOT_RUNNING = ("bench/", "cli/")
SETTINGS = (
    EngineConfig,
    SamplingParams,
    Speculation,
    executor.ExecutorConfig,
    executor.SchedulerConfig,
    executor.KvCacheConfig,
    executor.KvCacheRetentionConfig,
    executor.TokenRangeRetentionConfig,
    executor.GuidedDecodingConfig,
    executor.GuidedDecodingParams,
    executor.DynamicBatchConfig,
    executor.DebugConfig,
    executor.DecodingConfig,
    executor.ExternalDraftTokensConfig,
    executor.FlightRecorderConfig,
    executor.LogitsPostProcessorConfig,
    executor.AdditionalModelOutput,
    executor.OutputConfig,
    executor.SamplingConfig,
    executor.Request,
)
INERT = {tuple(name.split(".")) for name in (*NO_EFFECT, *REFUSED)}
"""Documented as without effect, or as refused where it would be used."""
OTHER_VALUES = (True, False, None, 0, 1, 2, 0.5, "x", "auto", [1], [[1]], {"x": 1}, object())


def fields(cls: type) -> Iterator[str]:
    """The names of the fields, of a dataclass or of a pydantic model."""
    found: Any = getattr(cls, "model_fields", None)
    yield from found if found is not None else (field.name for field in dataclasses.fields(cls))


def reads() -> dict[str, set[str]]:
    """The files that read an attribute, by its name."""
    found = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        where = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found[node.attr].add(where)
    return found


def helpers() -> dict[str, set[str]]:
    """The fields that properties and methods of the executor's types read, by the name of each property or method."""
    found = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).as_posix().startswith("executor/types/"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                    found[node.name] |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return found


READS, HELPERS = reads(), helpers()


def is_read(name: str) -> bool:
    """Whether code that runs reads an attribute, itself or through a property beside its declaration, or as the field
    of a slot's record that has the same name."""
    if name in SlotRecord.fields():
        return True
    ways = {name} | {helper for helper, uses in HELPERS.items() if name in uses}
    return any(not where.startswith((*DECLARED, *NOT_RUNNING)) for way in ways for where in READS[way])


def takes(cls: Any, name: str, value: object) -> bool:
    """Whether a value is taken for a field by itself."""
    least: dict[type, dict[str, Any]] = {executor.Request: {"input_token_ids": [1], "max_tokens": 1}}
    try:
        cls(**{**least.get(cls, {}), name: value})
    except (InputError, ValueError, TypeError):
        return False
    return True


CASES = [(cls, name) for cls in SETTINGS for name in fields(cls)]


@pytest.mark.parametrize(("cls", "name"), CASES, ids=[f"{cls.__name__}.{name}" for cls, name in CASES])
def test_a_setting_is_read_or_refused(cls: type, name: str) -> None:
    if (cls.__name__, name) in INERT or is_read(name):
        return
    taken = [value for value in OTHER_VALUES if takes(cls, name, value)]
    # Its default alone, which may compare equal to others: 0, False.
    assert all(value == taken[0] for value in taken), f"nothing reads {name}, yet it may be any of {taken}"


def test_a_setting_that_nothing_reads_is_noticed() -> None:
    assert is_read("max_batch") and not is_read("recv_poll_period_ms")
    assert takes(executor.Request, "pad_id", 1) and not takes(executor.Request, "pad_id", "x")
