"""How many pages memory is room for."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from weft import LLM, EngineConfig, Speculation
from weft.engine.kv.size import DeviceMemory, host_pages, pages_in_memory
from weft.errors import InputError
from weft.runtime import CpuRuntime

ENOUGH = 1 + 2 * 7  # two slots, each of 96 tokens and 2 ahead, in pages of 16


def pages(given: int | None = None, free: int = 10_000, is_shared: bool = False, **config: Any) -> int:
    made = EngineConfig(max_batch=2, max_seq_len=96, num_pages=given, **config).resolved(1000, 0)
    return pages_in_memory(made, given, 100, DeviceMemory(free, is_shared), 0)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"kv_memory_fraction": 0.5}, 50),
        ({"kv_memory_fraction": 0.9}, 90),
        ({"kv_memory_fraction": 0.5, "kv_max_bytes": 4_099}, 40),
        ({"kv_memory_fraction": 0.2, "kv_max_bytes": 4_000}, 20),
        ({"kv_memory_fraction": 0.5, "given": 30}, 30),
        ({"kv_memory_fraction": 0.2, "given": 30}, 20),
        ({"kv_max_bytes": 1_200}, 12),
        ({"kv_max_bytes": 10_000}, ENOUGH),
        ({"kv_max_bytes": 10_000, "given": 70}, 70),
        ({"kv_memory_fraction": 0.9, "is_shared": True}, 2 * ENOUGH),
        ({"kv_memory_fraction": 0.2, "is_shared": True}, 20),
        ({"kv_memory_fraction": 0.9, "is_shared": True, "given": 70}, 70),
        ({"kv_memory_fraction": 0.05, "given": 5}, 5),
        ({"kv_max_bytes": 800}, 8),
        ({}, ENOUGH),
        ({"free": 1_000}, 9),
        ({"is_shared": True}, ENOUGH),
        ({"free": 2_000, "is_shared": True}, 10),
        ({"free": 2_000, "is_shared": True, "kv_max_bytes": 900}, 9),
        ({"free": 1_000, "is_shared": True, "given": 70, "kv_max_bytes": 7_000}, 70),
    ],
)
def test_the_least_counts(how: dict[str, Any], expected: int) -> None:
    assert pages(**how) == expected


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"kv_memory_fraction": 0.05}, "kv_memory_fraction is 0.05 of 10000 free bytes, room for 5 pages"),
        ({"kv_max_bytes": 799}, "kv_max_bytes is 799, room for 7 pages of 100 bytes"),
        ({"kv_max_bytes": 799, "kv_memory_fraction": 0.5}, "needs 8, with the one that pads: 800 bytes"),
        ({"kv_memory_fraction": 0.05, "given": 6}, "Raise kv_memory_fraction, or lower max_seq_len"),
        ({"free": 880}, "kv_memory_fraction is 0.9 of 880 free bytes, room for 7 pages of 100 bytes"),
        (
            {"free": 1_598, "is_shared": True},
            "kv_memory_fraction is 0.5 of 1598 free bytes, room for 7 pages",
        ),
    ],
)
def test_too_little_is_refused(how: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        pages(**how)


def test_the_host_has_pages_for_its_bytes() -> None:
    config = EngineConfig(host_cache_bytes=1050)
    assert (host_pages(config, 100), host_pages(EngineConfig(), 100)) == (10, 0)
    assert host_pages(replace(config, reuse=False), 100) == 0
    assert host_pages(config, 0) == 0  # all layers are recurrent
    with pytest.raises(InputError, match="a page takes 1051 bytes"):
        host_pages(config, 1051)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("kv_memory_fraction", 0.0, "above 0 and below 1"),
        ("kv_memory_fraction", 1.0, "above 0 and below 1"),
        ("kv_memory_fraction", "0.5", "above 0 and below 1"),
        ("kv_memory_fraction", True, "above 0 and below 1"),
        ("kv_memory_fraction", float("nan"), "above 0 and below 1"),
        ("kv_max_bytes", 0, "at least 1"),
        ("kv_max_bytes", 1.5, "whole number"),
        ("host_cache_bytes", -1, "0 or more"),
        ("host_cache_bytes", None, "0 or more"),
        ("secondary_offload_min_priority", 101, "0 to 100"),
        ("secondary_offload_min_priority", -1, "0 to 100"),
        ("kv_event_buffer", -1, "0 or more"),
        ("onboard_blocks", 1.5, "onboard_blocks is 1.5"),
    ],
)
def test_settings_that_make_no_sense_are_refused(field: str, value: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        EngineConfig(**{field: value})


def test_pages_are_not_read_where_they_are_on_the_host() -> None:
    EngineConfig(onboard_blocks=False)
    with pytest.raises(InputError, match="can't be read from there"):
        EngineConfig(onboard_blocks=False, host_cache_bytes=1 << 20)


@pytest.mark.parametrize("speculation", [Speculation.none(), Speculation.eagle3(num_draft_tokens=2)])
def test_an_engine_takes_its_share_of_what_is_free(
    speculation: Speculation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuRuntime, "free_memory", lambda _: 3_000_000)
    small = EngineConfig(max_batch=2, max_seq_len=96)
    with LLM(device="cpu", speculation=speculation, engine=small) as llm:
        page_bytes = sum(cache.page_bytes for cache in llm.engine.parts.caches)
        text = llm.generate("Write JSON.").text
    with LLM(device="cpu", speculation=speculation, engine=replace(small, kv_memory_fraction=0.2)) as llm:
        engine = llm.engine
        assert engine.config.num_pages == engine.kv.num_pages == 600_000 // page_bytes
        assert {cache.num_pages for cache in engine.parts.caches} == {engine.kv.num_pages}
        assert llm.generate("Write JSON.").text == text
    with pytest.raises(InputError, match=f"pages of {page_bytes} bytes"):
        LLM(device="cpu", speculation=speculation, engine=replace(small, kv_memory_fraction=0.01))


def test_pages_fit_the_free_memory_by_default(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Fewer pages than all slots can use still serve all requests, and a line says so."""
    caplog.set_level(logging.WARNING, "weft.client")
    config = EngineConfig(max_batch=4, max_seq_len=96)
    with LLM(device="cpu", engine=config) as llm:
        page_bytes = sum(cache.page_bytes for cache in llm.engine.parts.caches)
        texts = [output.text for output in llm.generate(["Write JSON."] * 8)]
        assert not caplog.records
    monkeypatch.setattr(CpuRuntime, "free_memory", lambda _: 2 * 12 * page_bytes)
    with LLM(device="cpu", engine=config) as llm:
        assert llm.engine.config.num_pages == 12
        (record,) = caplog.records
        assert "holds 176 tokens, not the 448 of max_batch requests" in record.getMessage()
        assert [output.text for output in llm.generate(["Write JSON."] * 8)] == texts
    with LLM(device="cpu", engine=replace(config, num_pages=20)) as llm:
        assert llm.engine.config.num_pages == 20
    monkeypatch.setattr(CpuRuntime, "free_memory", lambda _: 2 * 6 * page_bytes)
    with pytest.raises(InputError, match=r"kv_memory_fraction is 0\.5 of .* free bytes, room for 6 pages"):
        LLM(device="cpu", engine=config)
