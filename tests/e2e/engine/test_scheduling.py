"""Policies, overlap, chunks, preemption and found prefixes change when tokens come, never which."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.engine.drafters import DRAFTERS, save_random_drafters
from support.engine.oracle import assert_same
from support.engine.references import Cached, Checkpoint, make_guide
from support.engine.requests import WAYS
from support.grammar.guides import GUIDES
from support.products import each_value
from weft import LLM, EngineConfig, Output, SamplingParams, Speculation
from weft.engine.stats import StepRecord

ROWS = [(i * 7 % len(GUIDES), i % 3 != 2) for i in range(14)]
GREEDY = SamplingParams(max_tokens=40)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, tiny: Checkpoint) -> Path:
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)


def make(tiny: Checkpoint, speculation: Speculation, **engine: Any) -> LLM:
    engine.setdefault("max_batch", 4)
    return LLM(
        tiny.path,
        device="cpu",
        speculation=speculation,
        engine=EngineConfig(max_seq_len=288, kv_cache_dtype="float32", **engine),
    )


def answers(llm: LLM, prompts: list[str], rows: list[tuple[int, bool]] = ROWS) -> list[Output]:
    guides = [make_guide(GUIDES[i]) if guided else None for i, guided in rows]
    return llm.generate([prompts[i] for i, _ in rows], guide=guides, sampling=GREEDY)


def check(outputs: list[Output], references: Cached, rows: list[tuple[int, bool]] = ROWS) -> None:
    for output, (i, guided) in zip(outputs, rows, strict=True):
        assert output.error is None, f"guide {GUIDES[i]}: {output.error}"
        assert_same(output.token_ids, references(i, guided), f"guide {i}, guided: {guided}")


def check_nothing_is_held(llm: LLM) -> None:
    """Once the engine is idle: an answer is out a little before what it held is given back."""
    engine = llm.engine
    while llm.client.call(lambda: engine.has_work):
        pass
    usage = engine.kv.usage()
    assert usage.used_pages == 0 and usage.free_pages == usage.max_pages
    assert len(engine.scheduler.capacity.free_slots) == engine.config.max_batch
    engine.kv.check()


@each_value
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("drafter", ["none", "eagle3", "forced+ngram", "random mtp chain"])
def test_the_way_changes_no_token(
    tiny: Checkpoint,
    prompts: list[str],
    tiny_references: Cached,
    path: Path,
    turns: list[StepRecord],
    way: str,
    drafter: str,
) -> None:
    speculation = DRAFTERS[drafter](path, 3) if drafter != "none" else Speculation.none()
    with make(tiny, speculation, **WAYS[way]) as llm:
        check(answers(llm, prompts), tiny_references)
        check_nothing_is_held(llm)
        if way in ("few tokens", "equal progress"):
            # The last token of a prompt, which is decoded, comes on top.
            assert all(turn.context_tokens <= 64 + len(turn.context) for turn in turns)
        again = answers(llm, prompts)
        check(again, tiny_references)
        if (
            "few pages" in way and way != "a few pages on the host" and drafter == "none"
        ):  # at the latest now, since no guide must be compiled
            assert any(turn.paused for turn in turns), "nobody was preempted"
        assert sum(turn.new_active for turn in turns) == 2 * len(ROWS), "who was preempted was counted twice"
        check_nothing_is_held(llm)
        reused = sum(output.stats.reused_tokens for output in again)
        if "few pages" not in way:
            assert (reused > 0) == (way != "no prefixes")


@pytest.mark.parametrize(
    "drafter",
    [
        "eagle3",
        pytest.param("mtp", marks=pytest.mark.slow),
        pytest.param("draft_model", marks=pytest.mark.slow),
        "forced+ngram",
        "random mtp chain",
    ],
)
def test_found_prefixes_change_no_token(
    tiny: Checkpoint, prompts: list[str], tiny_references: Cached, path: Path, drafter: str
) -> None:
    """The same prompt again, whole and behind others' beginnings; drafts stay as good."""
    rng = random.Random(1)
    speculation = replace(DRAFTERS[drafter](path, 4), guide_drafts=True)
    with make(tiny, speculation, page_size=4, num_pages=1200, overlap=True) as llm:
        first = answers(llm, prompts)
        for _ in range(2):
            rows = rng.sample(ROWS, len(ROWS))
            again = answers(llm, prompts, rows)
            check(again, tiny_references, rows)
            for output in again:
                assert output.stats.reused_tokens >= len(output.prompt_token_ids) - 4 - 2 * 4 - 1
        lengths = [sum(output.stats.iterations for output in outputs) for outputs in (first, again)]
        assert abs(lengths[0] - lengths[1]) <= 0.05 * lengths[0] + 2


def test_a_preempted_request_keeps_its_grammar_and_its_seed(
    tiny: Checkpoint, prompts: list[str], turns: list[StepRecord]
) -> None:
    """With every sampling parameter that looks back on the text."""
    sampling = [
        SamplingParams(
            max_tokens=40,
            temperature=0.8,
            seed=i,
            frequency_penalty=0.3,
            repetition_penalty=1.1,
            bad_words=["the"],
            min_tokens=i,
            logprobs=2,
        )
        for i in range(8)
    ]
    guides = [make_guide(GUIDES[i]) if i % 2 else None for i in range(8)]
    seen = []
    for pages in (None, 26):
        policy = "max_utilization" if pages else "guaranteed_no_evict"
        with make(
            tiny, Speculation.eagle3(num_draft_tokens=2), num_pages=pages, page_size=8, policy=policy
        ) as llm:
            seen.append(llm.generate(prompts[:8], guide=guides, sampling=sampling))
    assert sum(len(turn.paused) for turn in turns) >= 2
    for alone, paused in zip(*seen, strict=True):
        assert alone.error is None and paused.error is None
        assert alone.token_ids == paused.token_ids
        assert alone.logprobs is not None and paused.logprobs is not None
        for a, b in zip(alone.logprobs, paused.logprobs, strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=1e-3)


def test_a_static_batch_is_full(tiny: Checkpoint, turns: list[StepRecord]) -> None:
    """However little a turn may read: who does not come in now waits until all the others are done."""
    with make(tiny, Speculation.none(), policy="static_batch", max_num_tokens=40) as llm:
        llm.generate([f"{i} apples and pears, " * 6 for i in range(8)], sampling=SamplingParams(max_tokens=8))
        assert max(turn.context_tokens for turn in turns) == 40
    assert [turn.new_active for turn in turns if turn.new_active] == [4, 4]
