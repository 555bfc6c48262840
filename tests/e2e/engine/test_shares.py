"""A client that holds all slots yields its part of them to another, and goes on later with the same tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from support.engine.oracle import assert_same
from support.engine.references import Cached, Checkpoint, make_guide
from support.engine.requests import make_request
from support.grammar.guides import GUIDES
from support.wasm.digits import digits
from support.wasm.guides import PROMPT
from weft import LLM, EngineConfig, SamplingParams, Speculation
from weft.core.request import Request
from weft.engine.sequence import Sequence

ADA, BOB = 1, 2
NEVER: frozenset[int] = frozenset()
LONG = SamplingParams(max_tokens=40)
SAMPLED = SamplingParams(max_tokens=60, temperature=0.9, seed=11, frequency_penalty=0.2)


def make(tiny: Checkpoint, speculation: Speculation | None = None, **engine: Any) -> LLM:
    # Without `max_stall`, so that a prompt is read in one step.
    engine = {"max_batch": 4, "max_seq_len": 288, "shares_slots": True, "max_stall": None, **engine}
    return LLM(
        tiny.path,
        device="cpu",
        speculation=speculation or Speculation.none(),
        engine=EngineConfig(kv_cache_dtype="float32", **engine),
    )


def step_until(llm: LLM, done: Any, most: int = 400) -> int:
    """Steps that it took."""
    for count in range(most):
        if done():
            return count
        llm.engine.step()
    raise AssertionError("it never came")


def flood(llm: LLM, prompts: list[str], count: int = 8) -> list[Sequence]:
    """Requests of Ada's: four in slots, each with a few tokens."""
    requests = [make_request(llm, prompts[i], SAMPLED, client=ADA, end_ids=NEVER) for i in range(count)]
    for request in requests:
        llm.engine.submit(request)
    step_until(llm, lambda: all(len(request.output.token_ids) > 3 for request in requests[:4]))
    return requests


WAYS: dict[str, tuple[Speculation, dict[str, Any]]] = {
    "none": (Speculation.none(), {"overlap": False}),
    "overlap": (Speculation.none(), {"overlap": True}),
    "eagle3": (Speculation.eagle3(num_draft_tokens=3), {"overlap": True}),
    "n-gram": (Speculation.ngram(num_draft_tokens=3), {"policy": "max_utilization", "num_pages": 90}),
    "no reuse": (Speculation.none(), {"reuse": False}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_newcomer_is_served_at_once_and_nobodys_tokens_change(
    tiny: Checkpoint, prompts: list[str], tiny_references: Cached, way: str
) -> None:
    speculation, engine = WAYS[way]
    with make(tiny) as llm:
        alone = flood(llm, prompts)
        step_until(llm, lambda: all(request.is_finished for request in alone))
    with make(tiny, speculation, **engine) as llm:
        adas = flood(llm, prompts)
        guide = make_guide(GUIDES[0])
        bobs = [
            make_request(llm, prompts[0], LONG, guide, client=BOB),
            make_request(llm, prompts[1], LONG, client=BOB),
        ]
        assert bobs[0].guide is not None
        bobs[0].guide.compiling.result()
        for request in bobs:
            llm.engine.submit(request)
        steps = step_until(llm, lambda: all(request.output.token_ids for request in bobs))
        assert steps <= 3, steps
        assert sum(request.is_active for request in adas) == 2
        step_until(llm, lambda: all(request.is_finished for request in adas + bobs))
        assert_same(bobs[0].output.token_ids, tiny_references(0, True), "guided")
        assert_same(bobs[1].output.token_ids, tiny_references(1, False), "plain")
        for request, expected in zip(adas, alone, strict=True):
            assert request.output.error is None
            assert request.output.token_ids == expected.output.token_ids
        assert llm.engine.kv.usage().used_pages == 0


def test_a_newcomers_prompt_is_read_beside_the_others(tiny: Checkpoint, prompts: list[str]) -> None:
    """The step that reads the prompt also decodes for all other sequences."""
    with make(tiny, overlap=False) as llm:
        adas = flood(llm, prompts)
        decoded, read = [], []
        for _ in range(6):
            bobs = make_request(llm, prompts[0], SamplingParams(max_tokens=1), client=BOB, end_ids=NEVER)
            llm.engine.submit(bobs)
            record = llm.engine.step()
            decoded.append(len(record.generation))
            read.append(bobs.id in record.context)
            assert bobs.is_finished
        assert read == [True] * 6
        assert decoded == [3] * 6
        step_until(llm, lambda: all(request.is_finished for request in adas))


def test_without_shares_a_newcomer_waits_for_an_end(tiny: Checkpoint, prompts: list[str]) -> None:
    with make(tiny, shares_slots=False) as llm:
        adas = flood(llm, prompts)
        bobs = make_request(llm, prompts[0], LONG, client=BOB)
        llm.engine.submit(bobs)
        step_until(llm, lambda: bool(bobs.output.token_ids))
        assert sum(request.is_finished for request in adas) >= 1


def test_a_client_that_comes_again_and_again_stops_nobody(tiny: Checkpoint, prompts: list[str]) -> None:
    """Each time one yields, and all of them end."""
    with make(tiny) as llm:
        adas = flood(llm, prompts)
        num_paused, num_bobs = 0, 0
        while not all(request.is_finished for request in adas):
            bobs = make_request(llm, prompts[num_bobs % 8], SamplingParams(max_tokens=3), client=BOB)
            llm.engine.submit(bobs)
            num_bobs += 1
            while not bobs.is_finished:
                num_paused += len(llm.engine.step().paused)
            assert num_bobs < 400
        assert 0 < num_paused <= num_bobs


def test_pages_are_shared_as_slots_are(tiny: Checkpoint, prompts: list[str]) -> None:
    """Two long requests have all pages; slots are free."""
    with make(tiny, num_pages=40) as llm:
        most = SamplingParams(max_tokens=150, temperature=0.9)
        adas = [make_request(llm, prompts[i], most, client=ADA, end_ids=NEVER) for i in range(3)]
        for request in adas:
            llm.engine.submit(request)
        step_until(llm, lambda: sum(len(request.output.token_ids) > 3 for request in adas) >= 2)
        bobs = make_request(llm, prompts[5], LONG, client=BOB)
        llm.engine.submit(bobs)
        assert step_until(llm, lambda: bool(bobs.output.token_ids)) <= 6
        assert not any(request.is_finished for request in adas)
        step_until(llm, lambda: all(request.is_finished for request in [*adas, bobs]), 1500)
        assert not any(request.output.error for request in [*adas, bobs])


def test_a_program_of_a_newcomer_begins_before_others_have_slots(tiny: Checkpoint) -> None:
    """Those ahead are all of a client that has every slot."""

    def ask(count: int, client: int) -> Sequence:
        sampling = SamplingParams(max_tokens=count + 10)
        asked = Request(PROMPT, sampling, digits(count), client_id=client)
        return llm.client.submit([asked])[0].sequences[0]

    def wait_for(done: Callable[[], bool]) -> None:
        limit = time.monotonic() + 120
        while not done():
            assert time.monotonic() < limit
            time.sleep(0.001)

    with make(tiny, max_batch=2, programs_ahead=2) as llm:
        adas = [ask(200, ADA) for _ in range(6)]
        wait_for(lambda: sum(len(request.output.token_ids) > 2 for request in adas) == 2)
        bobs = ask(6, BOB)
        wait_for(lambda: bobs.is_finished or any(request.is_finished for request in adas))
        assert bobs.is_finished and not any(request.is_finished for request in adas)
        wait_for(lambda: all(request.is_finished for request in adas))
        assert len({tuple(request.output.token_ids) for request in adas}) == 1
        assert all(request.output.stats.guided_valid for request in [*adas, bobs])


def test_who_yields_may_wait_longer_than_who_lacks_pages(tiny: Checkpoint, prompts: list[str]) -> None:
    with make(tiny, max_idle_s=0.05) as llm:
        adas = flood(llm, prompts, count=4)
        bobs = make_request(llm, prompts[0], SamplingParams(max_tokens=200), client=BOB, end_ids=NEVER)
        llm.engine.submit(bobs)
        step_until(llm, lambda: bobs.is_finished)
        step_until(llm, lambda: all(request.is_finished for request in adas))
        assert {request.output.finish_reason for request in adas} == {"length"}
