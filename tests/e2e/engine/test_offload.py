"""Texts that the device has no room for stay on the host, and are found there: no token changes."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.engine.drafters import DRAFTERS, save_random_drafters
from support.engine.oracle import assert_same
from support.engine.references import Cached, Checkpoint, make_guide
from support.engine.requests import make_request
from support.grammar.guides import GUIDES
from support.products import each_value
from weft import LLM, EngineConfig, Output, SamplingParams, Speculation
from weft.engine.runner import runner

NUMBERS = range(0, 60, 6)
GREEDY = SamplingParams(max_tokens=40)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, tiny: Checkpoint) -> Path:
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)


def small(tiny: Checkpoint, speculation: Speculation | None = None, **engine: Any) -> LLM:
    """Two slots, and hardly more pages than these need."""
    engine = {"max_batch": 2, "max_seq_len": 288, "page_size": 8, "num_pages": 60, **engine}
    return LLM(
        tiny.path,
        device="cpu",
        speculation=speculation or Speculation.none(),
        engine=EngineConfig(kv_cache_dtype="float32", **engine),
    )


def asked(
    llm: LLM, prompts: list[str], references: Cached, numbers: abc.Sequence[int] = NUMBERS
) -> list[Output]:
    """Answers with and without a guide, all of them right."""
    guides = [make_guide(GUIDES[i]) if i % 4 else None for i in numbers]
    outputs = llm.generate([prompts[i] for i in numbers], guide=guides, sampling=GREEDY)
    for i, output in zip(numbers, outputs, strict=True):
        assert output.error is None
        assert_same(output.token_ids, references(i, i % 4 != 0), f"guide {i}")
    llm.client.call(llm.engine.kv.check)
    return outputs


@each_value
@pytest.mark.parametrize("how", [{"overlap": True}, {"graphs": "split"}, {"graphs": "none", "overlap": True}])
@pytest.mark.parametrize(
    "drafter", ["none", "eagle3", "mtp", "draft_model", "forced+ngram", "random mtp chain"]
)
def test_what_went_to_the_host_is_found_again(
    tiny: Checkpoint,
    prompts: list[str],
    tiny_references: Cached,
    path: Path,
    drafter: str,
    how: dict[str, Any],
) -> None:
    speculation = None
    if drafter != "none":
        speculation = replace(DRAFTERS[drafter](path, 3), guide_drafts=True)
    with small(tiny, speculation, host_cache_bytes=64 << 20, **how) as llm:
        first = asked(llm, prompts, tiny_references)
        again = asked(llm, prompts, tiny_references)
        asked(llm, prompts, tiny_references)
        usage = llm.engine.kv.usage()
    assert usage.offloaded_pages > 100 and usage.onboarded_pages > 100
    margin = 8 + 2 * 3  # a page, and what a chain reads again
    assert all(output.stats.reused_tokens >= len(output.prompt_token_ids) - margin for output in again)
    lengths = [sum(output.stats.iterations for output in outputs) for outputs in (first, again)]
    assert abs(lengths[0] - lengths[1]) <= 0.05 * lengths[0] + 2, "the drafter's pages came back, too"


def test_without_the_host_most_of_it_is_gone(
    tiny: Checkpoint, prompts: list[str], tiny_references: Cached
) -> None:
    with small(tiny) as llm:
        asked(llm, prompts, tiny_references)
        again = asked(llm, prompts, tiny_references)
    found, all_of_it = (
        sum(output.stats.reused_tokens for output in again),
        sum(len(output.prompt_token_ids) for output in again),
    )
    assert found < all_of_it / 2


@pytest.mark.parametrize("seed", range(4))
def test_no_order_of_the_device_changes_a_token(
    tiny: Checkpoint,
    prompts: list[str],
    tiny_references: Cached,
    schedules: Callable[..., None],
    seed: int,
) -> None:
    """With a host that is too small as well, so that its pages change hands."""
    schedules("random" if seed % 2 else "ahead", seed)
    with small(tiny, Speculation.eagle3(num_draft_tokens=2), host_cache_bytes=1 << 19, overlap=True) as llm:
        for _ in range(2):
            asked(llm, prompts, tiny_references, NUMBERS[:6])
        usage = llm.engine.kv.usage()
    assert usage.offloaded_pages > 2 * usage.max_host_pages and usage.onboarded_pages > 0


def test_only_the_own_salt_finds_what_went_to_the_host(tiny: Checkpoint, prompts: list[str]) -> None:
    with small(tiny, host_cache_bytes=64 << 20) as llm:
        texts = [prompts[i] for i in NUMBERS]
        short = SamplingParams(max_tokens=2)
        llm.generate(texts, sampling=short, cache_salt="one")
        assert llm.engine.kv.usage().host_pages > 0
        for salt, is_found in (("two", False), (None, False), ("one", True)):
            outputs = llm.generate(texts, sampling=short, cache_salt=salt)
            assert [output.stats.reused_tokens > 8 for output in outputs] == [is_found] * len(texts), salt


def test_a_preempted_request_finds_its_own_salt_on_the_host(tiny: Checkpoint, prompts: list[str]) -> None:
    """Same texts with two salts, which push each other off the device."""
    how = {"policy": "max_utilization", "num_pages": 34, "host_cache_bytes": 64 << 20, "max_batch": 4}
    references = [tiny.reference(prompt, None, 80) for prompt in prompts[:3]]
    with small(tiny, **how) as llm:
        sampling = SamplingParams(max_tokens=80)
        requests = [make_request(llm, prompt, sampling) for prompt in prompts[:3] * 2]
        for request, salt in zip(requests, ["one"] * 3 + ["two"] * 3, strict=True):
            request.request = replace(request.request, cache_salt=salt)
        paused = 0
        for request in requests:
            llm.engine.submit(request)
        while not all(request.is_finished for request in requests):
            paused += len(llm.engine.step().paused)
        for number, request in enumerate(requests):
            assert_same(request.output.token_ids, references[number % 3], f"request {number}")
        usage = llm.engine.kv.usage()
    assert paused and usage.onboarded_pages > 0


def test_where_moves_can_t_be_launched_nothing_is_taken_for_there(
    tiny: Checkpoint,
    prompts: list[str],
    tiny_references: Cached,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The requests of that step fail; what was cached is read anew."""
    with small(tiny, host_cache_bytes=64 << 20, overlap=True) as llm:
        asked(llm, prompts, tiny_references)
        assert llm.engine.kv.usage().host_pages > 0
        with monkeypatch.context() as patch:

            def broken(*_: object) -> None:
                raise RuntimeError("no copies today")

            patch.setattr(runner, "_move_page", broken)
            failed = llm.generate([prompts[i] for i in NUMBERS[:2]], sampling=GREEDY)
        assert any("no copies today" in str(output.error) for output in failed)
        engine = llm.engine
        while llm.client.call(lambda: engine.has_work):
            pass
        usage = engine.kv.usage()
        assert (usage.used_pages, usage.cached_pages, usage.host_pages) == (0, 0, 0)
        asked(llm, prompts, tiny_references)
