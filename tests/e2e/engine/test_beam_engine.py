"""Beam requests in an engine: beside requests without beams and of other widths, under every policy, with prefixes
found again, few pages, cancelled and timed out. Answers are those of a `BeamGroup` alone, and nothing is kept.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from support.engine.beams import Beams
from support.engine.references import Checkpoint
from support.engine.requests import engine_request
from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation
from weft.core.beam_params import BeamParams
from weft.engine.engine import Engine
from weft.engine.sequence import Sequence
from weft.errors import CapacityError, InputError
from weft.grammar.base import CompiledGuide

CHOICE = ["Berlin", "Bern", "Bernau", "on", "off", "unknown"]


@pytest.fixture
def llm(tiny: Checkpoint) -> Iterator[LLM]:
    with make(tiny) as made:
        yield made


def make(tiny: Checkpoint, **engine: Any) -> LLM:
    config = {"max_batch": 8, "max_beam_width": 4, "max_seq_len": 256, "page_size": 8, **engine}
    return LLM(tiny.path, device="cpu", engine=EngineConfig(**config))


def beam(
    prompt: list[int],
    width: int,
    guide: Future[CompiledGuide] | None = None,
    max_tokens: int = 12,
    **more: Any,
) -> Sequence:
    params = BeamParams(width, length_penalty=1.0, early_stopping=0)
    return engine_request(prompt, SamplingParams(max_tokens=max_tokens), 0, guide=guide, beam=params, **more)


def plain(prompt: list[int], guide: Future[CompiledGuide] | None = None) -> Sequence:
    return engine_request(prompt, SamplingParams(max_tokens=9), 0, guide=guide)


def texts(request: Sequence) -> list[list[int]]:
    return (
        [h.token_ids for h in request.output.hypotheses]
        if request.request.beam is not None
        else [request.output.token_ids]
    )


def run(engine: Engine, requests: list[Sequence]) -> list[set[int]]:
    """Run requests to their end; the widths that were active in each turn."""
    for request in requests:
        engine.submit(request)
    widths = []
    while engine.has_work:
        engine.step()
        widths.append({r.width for r in engine.running})
    for request in requests:
        assert request.output.error is None, request.output.error
    return widths


def check_nothing_is_held(engine: Engine) -> None:
    usage = engine.kv.usage()
    assert usage.used_pages == 0 and usage.free_pages == usage.max_pages
    engine.kv.check()
    assert not engine.running and not engine.waiting


def mixed(llm: LLM, prompts: list[str]) -> list[Sequence]:
    encode = llm.tokenizer.encode
    choice = llm.compile(Guide.choice(CHOICE))
    choice.result()
    return [
        plain(encode(prompts[0])),
        beam(encode(prompts[0]), 3),
        beam(encode(prompts[1]), 3, choice),
        beam(encode(prompts[2]), 3),
        beam(encode(prompts[0]), 2, choice),
        plain(encode(prompts[1])),
    ]


def test_every_width_waits_for_the_others_and_gives_its_own_answers(
    tiny: Checkpoint, prompts: list[str], llm: LLM
) -> None:
    requests = mixed(llm, prompts)
    widths = run(llm.engine, requests)
    assert all(len(active) <= 1 for active in widths)
    order = [next(iter(active)) for active in widths if active]
    assert [width for i, width in enumerate(order) if i == 0 or order[i - 1] != width] == [1, 3, 2, 1]
    alone = Beams(tiny.path, page_size=8, max_seq_len=256)
    for request, again in zip(requests, mixed(llm, prompts), strict=True):
        if again.request.beam is not None:
            guide = Guide.choice(CHOICE) if again.guide is not None else None
            again = engine_request(again.prompt, again.request.sampling, 0, beam=again.request.beam)
            alone.run([again], [guide])
        else:
            run(llm.engine, [again])
        assert texts(request) == texts(again)
        assert request.output.token_ids == texts(request)[0]
        assert request.output.stats.time_to_first_token_s > 0
    assert requests[2].output.stats.guided_valid
    check_nothing_is_held(llm.engine)


@pytest.mark.parametrize("policy", ["max_utilization", "static_batch"])
@pytest.mark.parametrize("graphs", ["split", "none"])
def test_policies_and_graphs_change_no_answer(
    tiny: Checkpoint, prompts: list[str], llm: LLM, policy: str, graphs: str
) -> None:
    expected = mixed(llm, prompts)
    run(llm.engine, expected)
    with make(tiny, policy=policy, graphs=graphs, overlap=graphs == "none") as other:
        found = mixed(other, prompts)
        run(other.engine, found)
        assert [texts(request) for request in found] == [texts(request) for request in expected]
        check_nothing_is_held(other.engine)


def test_a_prompt_that_was_read_is_found_again(prompts: list[str], llm: LLM) -> None:
    prompt = llm.tokenizer.encode(prompts[0])
    requests: list[Sequence] = [
        beam(prompt, 3),
        beam(prompt, 2),
        plain(prompt),
        beam([*prompt[:45], 7, 8], 3),
    ]
    for request in requests:
        run(llm.engine, [request])
    found = [request.output.stats.reused_tokens for request in requests]
    full = (len(prompt) - 1) // 8 * 8
    assert found[0] == 0 and found[1] >= full and found[2] >= full and 40 <= found[3] <= 45
    again = beam(prompt, 3)
    run(llm.engine, [again])
    assert texts(again) == texts(requests[0])  # found pages hold what was read, not what beams wrote
    check_nothing_is_held(llm.engine)


def test_few_pages_make_requests_wait_and_too_few_refuse(tiny: Checkpoint, prompts: list[str]) -> None:
    prompt = tiny.tokenizer.encode(prompts[0])
    needed = len(prompt) // 8 + 4 * (-(-(len(prompt) + 12) // 8) - len(prompt) // 8)
    with make(tiny, num_pages=needed + 1) as small:
        requests: list[Sequence] = [beam(prompt, 4), beam(prompt[1:], 4)]
        for request in requests:
            small.engine.submit(request)
        while small.engine.has_work:
            small.engine.step()
            assert len(small.engine.running) <= 1
        assert all(r.output.finish_reason in ("stop", "length") for r in requests)
        check_nothing_is_held(small.engine)
    with make(tiny, num_pages=needed) as smaller:
        one = beam(prompt, 4)
        smaller.engine.submit(one)
        assert isinstance(one.output.error, CapacityError) and f"needs {needed} pages" in str(
            one.output.error
        )


def test_those_that_are_cancelled_or_late_keep_their_best_and_disturb_nobody(
    prompts: list[str], llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, prompt = llm.engine, llm.tokenizer.encode(prompts[0])
    alone = beam(prompt, 3)
    run(engine, [alone])
    now = time.perf_counter()
    cancelled, late = beam(prompt, 3), beam(prompt, 3, deadline=now + 3600)
    stays = beam(prompt, 3)
    engine.submit(cancelled)
    engine.submit(late)
    for _ in range(3):
        engine.step()
    engine.submit(stays)
    engine.cancel(cancelled)
    assert not late.is_finished
    monkeypatch.setattr(time, "perf_counter", lambda: now + 3600)
    while engine.has_work:
        engine.step()
    assert cancelled.output.finish_reason == "cancelled" and late.output.finish_reason == "timeout"
    for ended in (cancelled, late):
        assert ended.output.hypotheses and ended.output.token_ids == ended.output.hypotheses[0].token_ids
    assert texts(stays) == texts(alone)
    check_nothing_is_held(engine)


def test_a_random_mix_leaves_nothing_behind(tiny: Checkpoint, prompts: list[str]) -> None:
    rng = random.Random(4)
    with make(tiny, num_pages=90, page_size=4, max_seq_len=128) as llm:
        engine, choice = llm.engine, llm.compile(Guide.choice(CHOICE))
        choice.result()
        known: dict[tuple[int, int, bool], list[list[int]]] = {}
        asked: list[tuple[tuple[int, int, bool], Sequence]] = []
        while len(asked) < 120 or engine.has_work:
            if len(asked) < 120 and rng.random() < 0.5:
                kind = rng.randrange(4), rng.choice([1, 2, 2, 3, 4]), rng.random() < 0.5
                text = llm.tokenizer.encode(prompts[kind[0]])[-20 - 9 * kind[0] :]
                guide = choice if kind[2] else None
                made = plain(text, guide) if kind[1] == 1 else beam(text, kind[1], guide)
                made.deadline = time.perf_counter() + rng.choice([60, 60, 0.2])
                engine.submit(made)
                asked.append((kind, made))
            engine.step()
            engine.kv.check()
            if rng.random() < 0.05 and asked:
                engine.cancel(rng.choice(asked)[1])
        for kind, request in asked:
            assert request.is_finished and request.output.error is None
            if request.output.finish_reason in ("stop", "length"):
                assert known.setdefault(kind, texts(request)) == texts(request)
        assert len(known) > 20
        check_nothing_is_held(engine)


def test_a_wide_request_is_refused_and_so_is_an_engine_that_speculates(tiny: Checkpoint, llm: LLM) -> None:
    wide = beam([1, 2, 3], 5)
    llm.engine.submit(wide)
    assert isinstance(wide.output.error, InputError)
    assert "beam_width is 5, but max_beam_width is 4" in str(wide.output.error)
    with pytest.raises(InputError, match=r"does not work with speculation \(ngram\)"):
        LLM(tiny.path, device="cpu", speculation=Speculation.ngram(), engine=EngineConfig(max_beam_width=2))
    with pytest.raises(InputError, match="max_beam_width is 9, but 8 sequences"):
        make(tiny, max_beam_width=9)
    with pytest.raises(InputError, match="max_beam_width is 0"):
        EngineConfig(max_beam_width=0)
