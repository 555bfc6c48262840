"""Fields are checked by their annotations, and a resolved configuration has a number for every default."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from weft import EngineConfig, InputError, Speculation
from weft.config import CacheConfig, ExecutionConfig, GuideConfig, ResolvedConfig, SchedulerConfig
from weft.core.values import Checked, Count, number, ranges, whole


def _is_long(name: str, value: str) -> None:
    if len(value) < 3:
        raise InputError(f"{name} is short")


@dataclass(frozen=True)
class Settings(Checked):
    count: Count = 1
    share: Annotated[float, number(0, 1, "0 to 1")] | None = None
    size: Annotated[int, whole(2, 8, "2 to 8")] = 2
    mode: Literal["auto"] | bool = "auto"
    text: Annotated[str, _is_long] = "long"
    anything: Any = None


def test_what_fits_is_taken() -> None:
    Settings(3, 0.5, 8, True, "longer", object())
    Settings(np.int64(3), 1, 2, False, "longer")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("count", 0, "count is 0; it must be at least 1"),
        ("count", True, "count is True; it must be a whole number: at least 1"),
        ("count", None, "count is None; it must be a whole number: at least 1"),
        ("share", 1.5, "share is 1.5; it must be 0 to 1"),
        ("share", float("nan"), "share is nan; it must be 0 to 1"),
        ("share", "x", "share is 'x'; it must be a number: 0 to 1"),
        ("size", 9, "size is 9; it must be 2 to 8"),
        ("mode", "on", "mode is 'on'; it must be \"auto\", True or False"),
        ("text", "ab", "text is short"),
    ],
)
def test_what_does_not_fit_is_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        Settings(**{field: value})  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_ranges_are_those_of_numbers() -> None:
    assert {name: each.valid for name, each in ranges(Settings).items()} == {
        "count": "at least 1",
        "share": "0 to 1",
        "size": "2 to 8",
    }


def test_every_setting_of_an_engine_has_one_owner() -> None:
    owners = (SchedulerConfig, CacheConfig, ExecutionConfig, GuideConfig)
    names = [field.name for owner in owners for field in dataclasses.fields(owner)]
    assert names == [field.name for field in dataclasses.fields(EngineConfig)]
    assert len(set(names)) == len(names)


def test_a_resolved_configuration_has_no_gaps() -> None:
    config = EngineConfig().resolved(1000, Speculation.ngram().max_draft_tokens)
    gaps = {field.name for field in dataclasses.fields(config) if getattr(config, field.name) is None}
    assert gaps == {"kv_memory_fraction", "kv_max_bytes"}  # no limit
    assert isinstance(config, ResolvedConfig) and config == config.resolved(1000, 3)
    assert (config.max_seq_len, config.max_num_tokens, config.prefill_chunk) == (1000, 2048, 512)


def test_integers_of_numpy_become_pythons() -> None:
    config = EngineConfig(max_batch=np.int64(2), max_seq_len=np.int32(64)).resolved(1000, 0)  # type: ignore[arg-type]
    assert type(config.max_batch) is type(config.max_seq_len) is int


def test_a_setting_by_another_librarys_name_is_explained() -> None:
    with pytest.raises(TypeError, match="no parameter 'max_model_len'; it is called max_seq_len"):
        EngineConfig(max_model_len=5)  # type: ignore[call-arg]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("graphs", ["one", "split", "none"])
def test_auto_overlaps_only_where_overlap_is_allowed(graphs: Any, device: str) -> None:
    assert EngineConfig(graphs=graphs).is_overlapped(device) == (device == "cuda" and graphs != "split")
    assert not EngineConfig(graphs=graphs, overlap=False).is_overlapped(device)
    if graphs == "split":
        with pytest.raises(InputError, match="overlap needs"):
            EngineConfig(graphs=graphs, overlap=True)
    else:
        assert EngineConfig(graphs=graphs, overlap=True).is_overlapped(device)
