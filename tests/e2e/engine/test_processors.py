"""Logits processors: what they see, what comes of it in every way of decoding, and how many there may be."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from support.engine.processors import GREEDY, Steer, answers, one, steer, wander
from support.engine.references import Checkpoint
from support.engine.requests import Told, make_request, run, settle, told
from weft import LLM, EngineConfig, Guide, SamplingParams
from weft.core.logits_processors import ProcessorRows
from weft.core.request import Gather
from weft.engine.features.processors import MAX_CAPTURED
from weft.engine.sequence import Sequence
from weft.errors import CapacityError
from weft.runtime import cpu


def wander_batched(
    request_ids: list[int], logits: list[Tensor], tokens: list[list[list[int]]], stream: object, clients: Any
) -> list[Tensor | None]:
    """The same; every other position by a tensor of its own."""
    results: list[Tensor | None] = []
    for i, (each, text) in enumerate(zip(logits, tokens, strict=True)):
        mine = each.clone() if i % 2 else each
        wander(request_ids[i], mine, text, stream, clients[i])
        results.append(mine if i % 2 else None)
    return results


KINDS = ("eagle3", "mtp", "draft_model", "ngram", "forced+eagle3", "random eagle3")
WAYS = [
    *((kind, "one") for kind in (None, *KINDS)),
    *((kind, graphs) for kind in ("eagle3", "forced+eagle3") for graphs in ("split", "none")),
]
BIAS = {821: -60.0, 223: -60.0, 44: 3.0}


@pytest.mark.parametrize(("kind", "graphs"), WAYS)
def test_a_scripted_answer_comes_out(
    make_llm: Callable[..., LLM], prompts: list[str], kind: str | None, graphs: str
) -> None:
    llm = make_llm(kind, graphs=graphs)
    script = [40 + (7 * i) % 90 for i in range(GREEDY.max_tokens)]
    start = len(llm.tokenizer.encode(prompts[0]))

    def dictate(_: int, logits: Tensor, tokens: list[list[int]], *__: object) -> Tensor:
        forced = torch.full_like(logits, float("-inf"))
        forced[..., script[min(len(tokens[0]) - start, len(script) - 1)]] = 0.0
        return forced.view(-1)

    requests = [
        make_request(llm, prompts[0], GREEDY, processor=one(dictate)),
        make_request(llm, prompts[1], GREEDY),
    ]
    run(llm, requests)
    assert requests[0].output.token_ids == script
    assert requests[1].output.token_ids == answers(llm, prompts, None)[1]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", [None, "eagle3", "ngram"])
def test_a_bias_equals_logit_bias(
    make_llm: Callable[..., LLM], prompts: list[str], kind: str | None, temperature: float
) -> None:
    llm = make_llm(kind)

    def bias(_: int, logits: Tensor, *__: object) -> None:
        for token, value in BIAS.items():
            logits[..., token] += value

    plain = SamplingParams(max_tokens=16, temperature=temperature, seed=5)
    biased = SamplingParams(max_tokens=16, temperature=temperature, seed=5, logit_bias=BIAS)
    requests = [
        make_request(llm, prompts[0], plain, processor=one(bias)),
        make_request(llm, prompts[0], biased),
        make_request(llm, prompts[0], plain),
    ]
    run(llm, requests)
    ours, given, without = (request.output.token_ids for request in requests)
    assert ours == given != without


@pytest.mark.parametrize(("kind", "graphs"), WAYS)
def test_speculation_changes_nothing(
    make_llm: Callable[..., LLM], prompts: list[str], kind: str | None, graphs: str
) -> None:
    expected = answers(make_llm(), prompts, one(wander))
    assert expected[0] != answers(make_llm(), prompts, None)[0]
    llm = make_llm(kind, graphs=graphs)
    assert answers(llm, prompts, one(wander)) == expected
    assert answers(llm, prompts, one(wander_batched, is_batched=True)) == expected


@pytest.mark.parametrize("kind", [None, "eagle3", "ngram"])
def test_overlap_changes_nothing(make_llm: Callable[..., LLM], prompts: list[str], kind: str | None) -> None:
    expected = answers(make_llm(), prompts, one(wander))
    llm = make_llm(kind, overlap=True)
    for _ in range(2):
        assert answers(llm, prompts, one(wander)) == expected
        assert answers(llm, prompts, None) == answers(make_llm(), prompts, None)


@pytest.mark.parametrize(("kind", "num_pages"), [(None, 68), ("eagle3", 78)])
def test_preemption_changes_nothing(
    make_llm: Callable[..., LLM], prompts: list[str], kind: str | None, num_pages: int
) -> None:
    """A preempted request's text, with what it said before, is what its processor sees when it goes on."""
    longer = SamplingParams(max_tokens=40)
    expected = answers(make_llm(), prompts, one(wander), sampling=longer)
    llm = make_llm(kind, policy="max_utilization", num_pages=num_pages, page_size=4)
    paused: list[int] = []
    requests = [
        make_request(llm, prompts[i], longer, processor=one(wander) if i != 1 else None) for i in range(3)
    ]
    for request in requests:
        llm.engine.submit(request)
    while not all(request.is_finished for request in requests):
        paused += llm.engine.step().paused
    assert [request.output.token_ids for request in requests] == expected
    assert paused


@pytest.mark.parametrize("schedule", ["threads", "random", "ahead"])
@pytest.mark.parametrize("kind", ["eagle3", "forced+eagle3"])
def test_no_schedule_changes_anything(
    make_llm: Callable[..., LLM], prompts: list[str], kind: str, schedule: Any
) -> None:
    guide = Guide.regex("[a-z ]{12,30}")
    llm = make_llm(kind)

    def mixed() -> Told:
        requests = [
            make_request(llm, prompts[i], GREEDY, guide if i != 1 else None, processor=one(wander))
            for i in range(3)
        ]
        run(llm, requests)
        return told(requests)

    settle(llm)
    expected = mixed()
    settle(llm)
    cpu.set_schedule(schedule, 7)
    try:
        assert mixed() == expected
    finally:
        settle(llm)
        cpu.set_schedule("inline")


@pytest.mark.parametrize("graphs", ["one", "split", "none"])
@pytest.mark.parametrize("kind", [None, "eagle3", "ngram"])
def test_captured_equals_the_hosts(
    make_llm: Callable[..., LLM], prompts: list[str], kind: str | None, graphs: str
) -> None:
    llm = make_llm(kind, graphs=graphs)
    expected = answers(llm, prompts, one(steer))
    assert expected[0] != answers(llm, prompts, None)[0]
    replays, iterations = llm.num_graph_replays, llm.num_iterations
    assert answers(llm, prompts, one(Steer())) == expected
    if graphs == "one":
        assert llm.num_graph_replays - replays == llm.num_iterations - iterations > 0


def test_captured_and_host_processors_share_a_batch(make_llm: Callable[..., LLM], prompts: list[str]) -> None:
    llm = make_llm("eagle3", overlap=True)
    alone = [answers(llm, prompts, one(each))[0] for each in (steer, wander, steer)]
    requests = [
        make_request(llm, prompts[0], GREEDY, processor=one(each)) for each in (Steer(), wander, steer)
    ]
    run(llm, requests)
    assert [request.output.token_ids for request in requests] == alone


def test_what_captured_processors_are_told(make_llm: Callable[..., LLM], prompts: list[str]) -> None:
    """Rows, ids, texts and lengths, seen where nothing is captured and the function runs in every iteration."""
    llm = make_llm("eagle3", graphs="none")
    seen: list[ProcessorRows] = []

    def watch(rows: ProcessorRows, logits_BTV: Tensor, stream: object) -> None:
        seen.append(rows)
        logits_BTV[~rows.active] = float("nan")  # others' rows are not its own to change

    watch.allows_capture = True  # type: ignore[attr-defined]
    requests = [
        make_request(llm, prompts[0], GREEDY, processor=one(watch, request_id=77)),
        make_request(llm, prompts[1], GREEDY),
    ]
    run(llm, requests)
    assert requests[1].output.token_ids == answers(llm, prompts, None)[1]
    text = requests[0].prompt + requests[0].output.token_ids
    mine = [(rows, int(b)) for rows in seen for b in rows.active.nonzero()]
    assert len(mine) == requests[0].output.stats.iterations + 1
    for rows, b in mine:
        assert rows.request_ids[b] == 77
        assert text[int(rows.lengths[b]) - 1] == rows.tokens[b, 0]


def test_a_captured_processor_that_keeps_what_it_is_given_is_refused(
    make_llm: Callable[..., LLM], prompts: list[str]
) -> None:
    """That is the graph's memory, which it uses again."""
    llm = make_llm("eagle3")
    seen: list[ProcessorRows] = []

    def keep(rows: ProcessorRows, logits_BTV: Tensor, stream: object) -> None:
        seen.append(rows)

    keep.allows_capture = True  # type: ignore[attr-defined]
    request = make_request(llm, prompts[0], GREEDY, processor=one(keep))
    run(llm, [request])
    assert "allocated during a capture" in str(request.output.error)


def test_what_host_processors_are_told(make_llm: Callable[..., LLM], prompts: list[str]) -> None:
    llm = make_llm("eagle3")
    seen: dict[tuple[int, ...], Tensor] = {}
    said: set[tuple[object, ...]] = set()

    def watch(request_id: int, logits: Tensor, tokens: list[list[int]], stream: Any, client: object) -> None:
        assert logits.shape == (1, 1, llm.engine.parts.model.config.vocab_size)
        assert isinstance(stream, int)  # as torch.cuda.ExternalStream wants it
        assert stream.__cuda_stream__() == (0, stream)  # type: ignore[attr-defined]
        said.add((request_id, client, int(stream)))
        seen[tuple(tokens[0])] = logits[0, 0].clone()
        logits.zero_()[..., 50] = 1.0

    sampling = SamplingParams(max_tokens=6, repetition_penalty=1.2)
    gather = Gather(generation_logits=True)
    request = make_request(
        llm, prompts[0], sampling, processor=one(watch, request_id=9, client_id=4), gather=gather
    )
    run(llm, [request])
    output = request.output
    assert output.token_ids == [50] * 6 and output.generation_logits is not None
    for i, logits in enumerate(output.generation_logits):  # raw: as the processor found them
        assert torch.equal(seen[(*request.prompt, *output.token_ids[:i])], logits)
    assert {(who, client) for who, client, _ in said} == {(9, 4)}
    assert all(handle for _, _, handle in said)


@pytest.mark.parametrize("function", [wander, Steer()])
def test_the_grammar_wins(make_llm: Callable[..., LLM], prompts: list[str], function: Any) -> None:
    llm = make_llm("eagle3")
    guide = Guide.regex("[0-9]{3,8}")
    request = make_request(llm, prompts[0], GREEDY, guide, processor=one(function))
    run(llm, [request])
    assert request.output.error is None
    text = llm.tokenizer.decode(request.output.token_ids, skip_special_tokens=True)
    assert text.isdecimal() and 3 <= len(text) <= 8


def test_captured_processors_come_and_go(tiny: Checkpoint, prompts: list[str]) -> None:
    """As many as there may be at a time; who is not in use makes room, and its graphs and itself are let go."""
    engine = EngineConfig(max_batch=MAX_CAPTURED + 1, max_seq_len=160)
    with LLM(tiny.path, device="cpu", engine=engine) as llm:
        short = SamplingParams(max_tokens=3)
        functions = [Steer() for _ in range(MAX_CAPTURED + 1)]
        gone = [weakref.ref(function) for function in functions]
        for function in functions:
            run(llm, [make_request(llm, prompts[0], short, processor=one(function))])
        graphs = llm.engine.graphs
        assert sum(bool(plan.processors.captured) for plan in graphs.plans) <= MAX_CAPTURED
        del function, functions[0]
        deadline = time.monotonic() + 60  # what a graph held is let go of on a thread of the runtime's
        while gone[0]() is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert gone[0]() is None
        requests = [make_request(llm, prompts[0], short, processor=one(Steer())) for _ in range(MAX_CAPTURED)]
        too_many: Sequence = make_request(llm, prompts[0], short, processor=one(Steer()))
        run(llm, [*requests, too_many])
        assert all(request.output.error is None for request in requests)
        assert isinstance(too_many.output.error, CapacityError)
        assert "8 captured logits processors are in use" in str(too_many.output.error)
