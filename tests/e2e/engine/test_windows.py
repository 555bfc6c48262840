"""Attention windows and sinks give the tokens of a plain loop under the same masks: by every drafter, in every way to
schedule, captured and eager. Pages that no layer sees any more are given back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.engine.checkpoints import save_checkpoint
from support.engine.drafters import DRAFTERS, save_random_drafters
from support.engine.drafting_requests import ROWS, check, references, run
from support.engine.oracle import Reference, assert_same
from support.engine.references import Checkpoint, load
from support.engine.requests import WAYS
from support.engine.windowed import windowed_model
from support.products import each_value, every_third, pairwise
from weft import LLM, EngineConfig, InputError, Output, SamplingParams, Speculation
from weft.client import builder
from weft.engine.kv.cache import KvSequence
from weft.engine.stats import StepRecord
from weft.ops.attention import NO_WINDOW


def windowed(checkpoint: Checkpoint, windows: Sequence[int], sinks: int) -> Checkpoint:
    """The same checkpoint under windows, as the reference decodes it."""
    return replace(checkpoint, model=windowed_model(checkpoint.path, windows, sinks))


WINDOWS: dict[str, tuple[tuple[int, ...], int]] = {
    "8": ((8,), 0),
    "8 with sinks": ((8,), 2),
    "8 and 32 with sinks": ((8, 32), 2),
    "8 with sinks, and none": ((8, 1000), 2),
}
KINDS = list(WINDOWS)
MIXED = KINDS[-1]
GREEDY = SamplingParams(max_tokens=60)


@pytest.fixture(scope="module")
def drafters(tiny: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)


@pytest.fixture(scope="module")
def expected(tiny: Checkpoint, prompts: list[str]) -> dict[str, list[Reference]]:
    """What `drafting_requests.ROWS` give under each of WINDOWS."""
    return {kind: references(windowed(tiny, *terms), prompts) for kind, terms in WINDOWS.items()}


@pytest.fixture(scope="module")
def long_answers(tiny: Checkpoint, prompts: list[str]) -> dict[str, list[Reference]]:
    """Greedy answers of random weights, which go on and on."""
    return {kind: plain(windowed(tiny, *terms), prompts[:4]) for kind, terms in WINDOWS.items()}


@pytest.fixture(scope="module")
def longest_answer(tiny: Checkpoint, prompts: list[str]) -> list[Reference]:
    return plain(windowed(tiny, *WINDOWS["8 and 32 with sinks"]), prompts[:1], 200)


def plain(checkpoint: Checkpoint, prompts: list[str], max_tokens: int = 60) -> list[Reference]:
    return [checkpoint.reference(prompt, None, max_tokens) for prompt in prompts]


def make(
    path: Path, kind: str | None, speculation: Speculation | None = None, seq_len: int = 320, **engine: Any
) -> LLM:
    windows, sinks = WINDOWS[kind] if kind is not None else ((), 0)
    config = EngineConfig(
        max_seq_len=seq_len, attention_windows=windows, sink_tokens=sinks, kv_cache_dtype="float32", **engine
    )
    return LLM(path, device="cpu", speculation=speculation, engine=config)


def matches(outputs: list[Output], expected: list[Reference]) -> None:
    for number, (output, reference) in enumerate(zip(outputs, expected, strict=True)):
        assert output.error is None
        assert_same(output.token_ids, reference, f"prompt {number}")


def used(turns: list[StepRecord]) -> list[int]:
    return [turn.kv.used_pages for turn in turns if turn.kv is not None]


def test_the_windows_matter(tiny: Checkpoint, prompts: list[str], long_answers: Any) -> None:
    """All kinds differ, and prompts and answers are longer than the widest window."""
    whole = plain(tiny, prompts[:4])
    answers = {kind: [r.tokens for r in found] for kind, found in {**long_answers, "": whole}.items()}
    assert all(answers[a] != answers[b] for a in answers for b in answers if a != b)
    assert min(len(tiny.tokenizer.encode(prompt)) for prompt in prompts[:4]) > 32


@pairwise
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("graphs", ["one", "split", "none"])
@pytest.mark.parametrize("batch", [1, 3, 12])
@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize("drafter", every_third(["none", *sorted(DRAFTERS)]))
def test_every_drafter_gives_the_tokens_of_the_plain_loop(
    tiny: Checkpoint,
    prompts: list[str],
    expected: dict[str, list[Reference]],
    drafters: Path,
    turns: list[StepRecord],
    drafter: str,
    page_size: int,
    batch: int,
    graphs: Any,
    kind: str,
) -> None:
    """Guided or not, greedy and at temperature 1; the second time with prefixes that are found."""
    speculation = DRAFTERS[drafter](drafters, 4) if drafter != "none" else None
    terms = {"max_batch": batch, "page_size": page_size, "graphs": graphs, "prefill_chunk": 23}
    with make(tiny.path, kind, speculation, num_pages=600, **terms) as llm:
        check(run(llm, prompts), expected[kind])
        again = run(llm, prompts)
        check(again, expected[kind])
        assert sum(output.stats.reused_tokens for output in again) > len(ROWS)


@each_value
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_the_way_changes_no_token(
    tiny: Checkpoint,
    prompts: list[str],
    long_answers: dict[str, list[Reference]],
    turns: list[StepRecord],
    way: str,
    kind: str,
) -> None:
    with make(tiny.path, kind, Speculation.ngram(num_draft_tokens=3), max_batch=4, **WAYS[way]) as llm:
        for _ in range(2):
            matches(llm.generate(prompts[:4], GREEDY), long_answers[kind])


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("policy", ["max_utilization", "guaranteed_no_evict"])
def test_pages_that_no_layer_sees_are_given_back(
    tiny: Checkpoint,
    prompts: list[str],
    turns: list[StepRecord],
    longest_answer: list[Reference],
    policy: Any,
    reuse: bool,
) -> None:
    """What is held at the end is the windows, the sinks, and what may be written."""
    reference = longest_answer
    assert len(reference[0].tokens) > 100
    with make(
        tiny.path, "8 and 32 with sinks", max_batch=1, page_size=4, policy=policy, reuse=reuse, graphs="none"
    ) as llm:
        matches([llm.generate(prompts[0], SamplingParams(max_tokens=200))], reference)
        held = [count for count in used(turns) if count]
        window, sinks, ahead, prompt = 32 // 4 + 1, 1, 2, len(tiny.tokenizer.encode(prompts[0]))
        if policy == "max_utilization":
            assert held[-1] <= window + sinks + ahead
            assert max(held) <= -(-prompt // 4) + window + sinks + ahead
        else:
            assert held[-1] < held[0] - len(reference[0].tokens) // 4 + window
        again = llm.generate(prompts[0], GREEDY)
        assert again.stats.reused_tokens == (prompt - 1 if reuse else 0), "the prompt is still found"


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_what_is_given_back_is_not_read(
    tiny: Checkpoint, prompts: list[str], long_answers: dict[str, list[Reference]], kind: str
) -> None:
    """It is NaN from then on."""
    terms = {"max_batch": 1, "page_size": 4, "reuse": False, "policy": "max_utilization", "overlap": False}
    with make(tiny.path, kind, Speculation.ngram(num_draft_tokens=2), **terms) as llm:
        manager, memory = llm.engine.kv, llm.engine.parts.kv
        release_pages, given = manager.release_pages, set()

        def poisoned(sequence: KvSequence, first: int, stop: int) -> None:
            pages = [*filter(None, sequence.pages[first:stop])]
            release_pages(sequence, first, stop)
            given.update(pages)
            memory.groups[0][:, pages] = float("nan")

        manager.release_pages = poisoned  # type: ignore[method-assign]
        matches(llm.generate(prompts[:1], GREEDY), long_answers[kind][:1])
    assert len(given) >= 4


@pytest.mark.parametrize("policy", ["max_utilization", "guaranteed_no_evict"])
@pytest.mark.parametrize("drafter", ["ngram", "eagle3"])
def test_layers_with_windows_have_pages_of_their_own(
    tiny: Checkpoint,
    prompts: list[str],
    long_answers: dict[str, list[Reference]],
    drafters: Path,
    drafter: str,
    policy: Any,
) -> None:
    """A page that is behind the window is NaN from then on, but for the cached ones."""
    terms = {"max_batch": 4, "page_size": 4, "policy": policy}
    with make(tiny.path, MIXED, DRAFTERS[drafter](drafters, 2), **terms) as llm:
        manager, memory = llm.engine.kv, llm.engine.parts.kv
        windowed = manager.windowed
        assert windowed is not None and memory.num_windowed == windowed.num_pages < memory.num_pages
        release_hidden, held = manager.release_hidden, list[int]()

        def poisoned(sequence: KvSequence, position: int) -> None:
            release_hidden(sequence, position)
            assert sequence.windowed is not None
            held.append(sum(map(bool, sequence.windowed.pages)))
            for group in memory.windowed_groups:
                group[:, windowed.free] = float("nan")
            manager.check()

        manager.release_hidden = poisoned  # type: ignore[method-assign]
        matches(llm.generate(prompts[:4], GREEDY), long_answers[MIXED])
        again = llm.generate(prompts[:4], GREEDY)
        matches(again, long_answers[MIXED])
        assert all(output.stats.reused_tokens > len(output.prompt_token_ids) - 6 for output in again)
    assert len(held) > 20 and max(held) <= 1 + 6 // 4 + 1 + 4, "a sink page, the window, and positions ahead"


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("policy", ["max_utilization", "guaranteed_no_evict"])
def test_few_pages_of_both_kinds(
    tiny: Checkpoint,
    prompts: list[str],
    turns: list[StepRecord],
    monkeypatch: pytest.MonkeyPatch,
    policy: Any,
    overlap: bool,
) -> None:
    """Requests are preempted for pages, and wait for windowed pages."""
    monkeypatch.setattr(builder, "windowed_pages", lambda *_: 50)
    short = [prompt[:16] for prompt in prompts[:6]]
    expected = plain(windowed(tiny, *WINDOWS[MIXED]), short)
    terms = {"max_batch": 4, "page_size": 4, "num_pages": 52, "policy": policy, "overlap": overlap}
    with make(tiny.path, MIXED, Speculation.ngram(num_draft_tokens=3), seq_len=160, **terms) as llm:
        for _ in range(3):
            matches(llm.generate(short, GREEDY), expected)
        assert llm.engine.kv.windowed is not None
    paused = [turn.paused for turn in turns if turn.paused]
    assert bool(paused) == (policy == "max_utilization")


def test_a_drafter_that_reads_pages_keeps_them(
    tiny: Checkpoint, prompts: list[str], turns: list[StepRecord], long_answers: dict[str, list[Reference]]
) -> None:
    kind = "8 with sinks"
    with make(
        tiny.path,
        kind,
        Speculation.eagle3(num_draft_tokens=2),
        max_batch=1,
        page_size=4,
        policy="max_utilization",
    ) as llm:
        matches(llm.generate(prompts[:1], GREEDY), long_answers[kind][:1])
        held = [count for count in used(turns) if count]
        assert held == sorted(held)


@pytest.mark.parametrize("windows", [(320,), (320, 4000)])
def test_windows_that_no_text_fills_are_none(tiny: Checkpoint, prompts: list[str], windows: Any) -> None:
    engine = EngineConfig(max_seq_len=320, attention_windows=windows, sink_tokens=3, kv_cache_dtype="float32")
    with LLM(tiny.path, device="cpu", engine=engine) as llm:
        assert {layer and layer.window for layer in llm.engine.parts.kv.layers} == {NO_WINDOW}
        matches(llm.generate(prompts[:2], GREEDY), plain(tiny, prompts[:2]))


def test_beams_attend_within_windows(tiny: Checkpoint, prompts: list[str]) -> None:
    """Every beam's score is the sum of what a plain loop gives its tokens."""
    reference = windowed_model(tiny.path, (8, 32), 2)
    with make(tiny.path, "8 and 32 with sinks", max_batch=3, max_beam_width=3, page_size=4) as llm:
        output = llm.generate(prompts[0], SamplingParams(max_tokens=30), beam_width=3)
    for answer in output.hypotheses:
        prompt = list(output.prompt_token_ids)
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + list(answer.token_ids)])).logits[0].float()
        said = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        total = float(said.gather(1, torch.tensor(answer.token_ids)[:, None]).sum())
        assert answer.cum_log_prob == pytest.approx(total, abs=1e-3)


def test_sinks_need_room_in_a_models_own_windows(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "mistral", sliding_window=16)
    with pytest.raises(
        InputError, match="sink_tokens is 16; it must be below the smallest attention window, 16"
    ):
        LLM(tmp_path, device="cpu", engine=EngineConfig(sink_tokens=16))


@pytest.mark.parametrize("page_size", [4, 16])
def test_a_model_with_a_window_of_its_own_answers_beyond_it(tmp_path: Path, page_size: int) -> None:
    """As transformers does, from prompts that are longer than the window."""
    save_checkpoint(tmp_path, "mistral", sliding_window=24)
    checkpoint = load(tmp_path)
    prompts = ["The year is 1984. " * count for count in (1, 6, 12)]
    with LLM(
        tmp_path,
        device="cpu",
        engine=EngineConfig(max_batch=2, page_size=page_size, prefill_chunk=20, kv_cache_dtype="float32"),
    ) as llm:
        assert llm.config.max_seq_len == 512
        matches(llm.generate(prompts, GREEDY), plain(checkpoint, prompts))
