"""Drafts are counted as what they were: proposed, verified in the same iterations, and in the answer. What the engine
says of it is held against what its recorder saw, for every drafter; against what was given; and against the turns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from support.engine.drafters import BEHIND_GIVEN, DRAFTERS, save_random_drafters
from support.engine.drafting_requests import GUIDED
from support.engine.flight_recorder import record
from support.engine.references import Checkpoint, make_guide
from support.engine.requests import Counted, make_request
from support.products import rest_slow
from weft import LLM, EngineConfig, SamplingParams, Speculation
from weft.engine.sequence import Sequence
from weft.engine.stats import StepRecord
from weft.executor import (
    Executor,
    ExecutorConfig,
    ExternalDraftTokensConfig,
    OutputConfig,
)
from weft.executor import Request as ExecutorRequest
from weft.guided.recording import Recording
from weft.runtime import cpu


def count_drafts(recording: Recording) -> dict[int, Counted]:
    """Anew, from what the grammar saw of each guided request, by its id: the drafts that it was asked about, what was
    verified, and of that what is in the answer. The recording is whole, and no program wrote a text anew.
    """
    counted: dict[int, Counted] = {}
    behind: dict[int, list[int]] = {r.id: list(r.tokens) for r in recording.requests}
    attached: set[int] = set()
    drafts: dict[int, dict[int, int]] = {}
    for operation in recording.operations:
        if operation.name == "fetch":
            attached |= {slot for slot, comes in operation.attached.items() if comes}
        elif operation.name == "extend_through":
            for entry in operation.entries:
                drafts.setdefault(entry.slot, {}).update(enumerate(entry.inputs, 1))
        elif operation.name == "commit":
            for entry in operation.entries:
                places = drafts.pop(entry.slot, {})
                is_prompt = entry.slot in attached
                attached.discard(entry.slot)
                request = recording.request_of(entry.matcher)
                if request is None or not behind[request.id]:  # it had ended; this was launched ahead
                    continue
                rest, (accepted, *tokens) = behind[request.id], entry.inputs
                kept = tokens[: len(rest)]
                assert kept == rest[: len(kept)]
                behind[request.id] = rest[len(kept) :]
                one = counted.setdefault(request.id, Counted())
                if is_prompt:
                    continue
                one.iterations += 1
                proposed = next(j for j in count(0) if places.get(j + 1, -1) < 0)
                if proposed:
                    one.drafted_iterations += 1
                    one.drafted_tokens += len(kept)
                    one.proposed_drafts += proposed if behind[request.id] else min(proposed, len(kept))
                    one.accepted_drafts += min(accepted, len(kept))
    return counted


ENGINES: dict[str, dict[str, Any]] = {
    "overlap": {"overlap": True},
    "no overlap": {"overlap": False},
    "split": {"graphs": "split"},
    "preempted": {"overlap": True, "policy": "max_utilization", "num_pages": 18, "page_size": 4},
}
CASES = [
    *((drafter, "overlap") for drafter in [*DRAFTERS, *BEHIND_GIVEN]),
    *itertools.product(("eagle3", "forced+ngram", "given+forced+eagle3"), sorted({*ENGINES} - {"overlap"})),
]
COUNTERS = ("speculating", "speculated_tokens", "proposed_drafts", "accepted_drafts")


@pytest.fixture(scope="module")
def random_drafters(tiny: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)


@pytest.fixture
def make(tiny: Checkpoint) -> Iterator[Callable[..., LLM]]:
    made: list[LLM] = []

    def build(speculation: Speculation, **engine: Any) -> LLM:
        config = {"max_batch": 3, "max_seq_len": 128} | engine
        made.append(LLM(tiny.path, device="cpu", speculation=speculation, engine=EngineConfig(**config)))
        return made[-1]

    yield build
    for llm in made:
        llm.close()
    cpu.set_schedule("inline")


def guided(llm: LLM, prompts: list[str], **fields: Any) -> list[Sequence]:
    """One under each kind of guide, and two without."""
    return [
        make_request(
            llm,
            prompts[i][-50:],
            SamplingParams(max_tokens=11 + i, temperature=float(i % 2), seed=i),
            make_guide(entry) if entry is not None else None,
            **fields,
        )
        for i, entry in enumerate([*GUIDED, None])
    ]


def run(llm: LLM, requests: list[Sequence]) -> list[StepRecord]:
    for request in requests:
        llm.engine.submit(request)
    turns = []
    while llm.engine.has_work:
        turns.append(llm.engine.step())
    assert [request.output.error for request in requests] == [None] * len(requests)
    return turns


def check(requests: list[Sequence], turns: list[StepRecord]) -> None:
    """What holds of every request, and of all turns together."""
    every = [request.output.stats for request in requests]
    for request, stats in zip(requests, every, strict=True):
        assert stats.accepted_drafts == sum(request.output.drafted) <= stats.proposed_drafts
        assert stats.drafted_iterations <= min(stats.iterations, stats.proposed_drafts)
        assert stats.drafted_tokens <= stats.accepted_drafts + stats.drafted_iterations
    sums = [sum(getattr(turn, name) for turn in turns) for name in COUNTERS]
    assert sums == [
        sum(getattr(stats, name) for stats in every)
        for name in ("drafted_iterations", "drafted_tokens", "proposed_drafts", "accepted_drafts")
    ]


@rest_slow
@pytest.mark.parametrize(("drafter", "engine"), CASES)
def test_counters_are_those_of_the_recording(
    make: Callable[..., LLM],
    prompts: list[str],
    random_drafters: Path,
    drafter: str,
    engine: str,
) -> None:
    speculation = DRAFTERS[drafter](random_drafters, 3) if drafter in DRAFTERS else BEHIND_GIVEN[drafter](3)
    llm = make(speculation, **ENGINES[engine])
    answers: list[tuple[int, ...]] = []
    if drafter in BEHIND_GIVEN:
        plain = guided(llm, prompts)
        run(llm, plain)
        answers = [tuple(r.output.token_ids) for r in plain]
    recorder = record(llm)
    requests = guided(llm, prompts)
    for request, answer in zip(requests, answers, strict=bool(answers)):
        request.request = replace(request.request, given=(*answer[:5], 7, *answer[6:]))
    requests[2].request = replace(requests[2].request, max_drafts=1)
    turns = run(llm, requests)
    check(requests, turns)
    counted = count_drafts(recorder.recording())
    recorder.close()
    with_guide = [r for r, entry in zip(requests, [*GUIDED, None], strict=True) if entry is not None]
    assert {r.id: Counted.of(r.output.stats) for r in with_guide} == counted
    if "random" not in drafter:
        assert sum(one.accepted_drafts for one in counted.values()) > 0
    assert sum(one.proposed_drafts for one in counted.values()) > 0
    assert engine != "preempted" or any(turn.paused for turn in turns)


GIVEN: dict[str, tuple[int, int, Callable[[list[int]], list[int]], int, int, int]] = {
    # drafts in an iteration, tokens, the text given, and so: iterations, proposed, accepted
    "all at once": (8, 9, lambda answer: answer, 1, 8, 8),
    "in two": (4, 9, lambda answer: answer, 2, 7, 7),
    "in two, whole": (4, 11, lambda answer: answer, 2, 8, 8),
    "nothing given": (8, 9, lambda answer: [], 8, 0, 0),
    "one right of three": (8, 10, lambda answer: [*answer[:2], 9, 10], 1, 2, 1),
}


@pytest.mark.parametrize("case", sorted(GIVEN))
def test_given_drafts_are_counted_by_an_executor(case: str) -> None:
    """The first token comes with the prompt, so that the first token given is no draft of an iteration; the request's
    own metrics count all that it brought. The answer ends where it departs from them."""
    num_drafts, num_tokens, text, iterations, proposed, accepted = GIVEN[case]
    config = ExecutorConfig(
        speculation=Speculation.given(num_draft_tokens=num_drafts),
        iter_stats_max_iterations=1000,
    )
    prompt = [0, 292, 28]
    with Executor(None, config) as executor:

        def answer(given: list[int]) -> Any:
            drafts = ExternalDraftTokensConfig(given) if given else None
            number = executor.enqueue_request(
                ExecutorRequest(
                    prompt,
                    num_tokens,
                    end_id=-1,
                    external_draft_tokens_config=drafts,
                    output_config=OutputConfig(return_perf_metrics=True, exclude_input_from_output=True),
                )
            )
            return executor.await_responses(number)[-1].result

        tokens = answer([]).output_token_ids[0]
        executor.get_latest_iteration_stats()
        assert len(tokens) == num_tokens
        given = text(tokens)
        right = next(
            (i for i, pair in enumerate(zip(given, tokens, strict=False)) if pair[0] != pair[1]), len(given)
        )
        result = answer(given)
        assert result.output_token_ids[0] == (tokens[: right + 1] if given else tokens)
        drafting = result.request_perf_metrics.speculative_decoding
        assert (drafting.total_draft_tokens, drafting.total_accepted_draft_tokens) == (len(given), right)
        assert drafting.acceptance_rate == (right / len(given) if given else 0)
        assert result.request_perf_metrics.last_iter - result.request_perf_metrics.first_iter == iterations
        stats = [one.specdec_stats for one in executor.get_latest_iteration_stats()]
        drafted = [one for one in stats if one is not None]
        assert sum(one.num_draft_tokens for one in drafted) == proposed
        assert sum(one.num_accepted_tokens for one in drafted) == accepted
        assert bool(drafted) == bool(proposed)
