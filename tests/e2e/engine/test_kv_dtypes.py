"""Answers over caches of each dtype: how a text is read, drafted and kept changes no token."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.engine.drafters import DRAFTERS, save_random_drafters
from support.engine.references import Checkpoint
from support.products import each_value
from weft import LLM, EngineConfig, SamplingParams, Speculation
from weft.ops.cached import CACHED

Answers = list[list[list[int]]]
SAMPLINGS = (SamplingParams(max_tokens=40), SamplingParams(max_tokens=40, temperature=1.0, seed=7))
NARROW = tuple(name for name in CACHED if name != "float32")
WAYS: dict[str, dict[str, Any]] = {
    "eager, chunks": {"graphs": "none", "prefill_chunk": 16},
    "overlap": {"overlap": True, "prefill_chunk": 16},
    "split": {"graphs": "split"},
    "few pages": {"policy": "max_utilization", "num_pages": 33, "page_size": 8},
    "host": {"num_pages": 70, "page_size": 8, "host_cache_bytes": 64 << 20, "max_batch": 2},
    "no copies": {"copy_on_partial_reuse": False, "page_size": 4},
    "windows": {"attention_windows": (24, 4096), "sink_tokens": 2},
}
"""Settings of an engine. With windows the answers are others."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, tiny: Checkpoint) -> Path:
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)


@pytest.fixture(scope="module")
def plain(tiny: Checkpoint, prompts: list[str]) -> Callable[..., Answers]:
    """The answers of an engine without drafts that reads each prompt whole and reuses nothing."""

    @cache
    def answers(name: str, **engine: Any) -> Answers:
        with llm_of(tiny, name, Speculation.none(), reuse=False, graphs="none", max_batch=1, **engine) as llm:
            return asked(llm, prompts)

    return answers


def llm_of(tiny: Checkpoint, name: str, speculation: Speculation, **engine: Any) -> LLM:
    engine = {"max_batch": 4, "max_seq_len": 256, **engine}
    return LLM(
        tiny.path, device="cpu", speculation=speculation, engine=EngineConfig(kv_cache_dtype=name, **engine)
    )


def asked(llm: LLM, prompts: list[str]) -> Answers:
    answers = []
    for sampling in SAMPLINGS:
        outputs = llm.generate(prompts[:24:3], sampling=sampling)
        assert all(output.error is None for output in outputs)
        answers.append([output.token_ids for output in outputs])
    llm.client.call(llm.engine.kv.check)
    return answers


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NARROW)
def test_no_way_of_reading_changes_a_token(
    tiny: Checkpoint, prompts: list[str], plain: Callable[..., Answers], name: str, way: str
) -> None:
    """The second time, prefixes are found."""
    windows = {key: value for key, value in WAYS[way].items() if key in ("attention_windows", "sink_tokens")}
    expected = plain(name, **windows)
    with llm_of(tiny, name, Speculation.none(), **WAYS[way]) as llm:
        assert asked(llm, prompts) == expected
        assert asked(llm, prompts) == expected


@each_value
@pytest.mark.parametrize("graphs", ["one", "none"])
@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_drafts_change_no_token(
    tiny: Checkpoint,
    prompts: list[str],
    plain: Callable[..., Answers],
    path: Path,
    drafter: str,
    name: str,
    graphs: str,
) -> None:
    with llm_of(tiny, name, DRAFTERS[drafter](path, 3), prefill_chunk=16, graphs=graphs) as llm:
        kept = [cache.dtype for cache in llm.engine.runner.parts.caches]
        assert asked(llm, prompts) == asked(llm, prompts) == plain(name)
    assert kept == [CACHED[name]] * len(kept), "the drafter's cache is of that dtype, too"


@pytest.mark.parametrize("name", NARROW)
def test_beams_share_and_copy_pages(tiny: Checkpoint, prompts: list[str], name: str) -> None:
    found = []
    for way in ({"reuse": False, "graphs": "none", "page_size": 64}, {"page_size": 4}):
        with llm_of(tiny, name, Speculation.none(), max_beam_width=4, **way) as llm:
            outputs = llm.generate(prompts[:3], sampling=SamplingParams(max_tokens=20), beam_width=4)
            found.append([[each.token_ids for each in output.hypotheses] for output in outputs])
    assert found[0] == found[1]


@pytest.mark.parametrize(("dtype", "expected"), [("auto", "bfloat16"), ("float32", "float32")])
def test_the_default_follows_the_weights(tiny: Checkpoint, dtype: str, expected: str) -> None:
    """weft-tiny's weights are float16."""
    with LLM(tiny.path, device="cpu", dtype=dtype, speculation=Speculation.eagle3()) as llm:
        caches = llm.engine.runner.parts.caches
        assert [each.dtype for each in caches] == [CACHED[expected]] * 2
        assert llm.engine.config.kv_cache_dtype == "auto"


def test_fewer_bits_hold_more_tokens(tiny: Checkpoint) -> None:
    pages = {}
    for name in ("float32", "bfloat16", "fp8", "int8"):
        with llm_of(tiny, name, Speculation.none(), kv_max_bytes=2 << 20, num_pages=9999) as llm:
            pages[name] = llm.engine.config.num_pages
            assert llm.engine.runner.parts.kv.num_bytes <= 2 << 20
    assert pages["bfloat16"] // pages["float32"] == 2 and pages["fp8"] // pages["float32"] == 4
    assert pages["bfloat16"] < pages["int8"] < pages["fp8"], "int8 has scales"
