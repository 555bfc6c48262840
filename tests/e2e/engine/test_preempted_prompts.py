"""A prompt that is preempted while it is read is found again as far as it was read, and no further."""

from __future__ import annotations

import random

import pytest

from support.engine.references import Checkpoint
from weft import LLM, EngineConfig, SamplingParams
from weft.engine.scheduler.scheduler import Capacity, Scheduler
from weft.engine.sequence import Sequence, Stage
from weft.engine.stats import StepRecord

LENGTH = 90


def test_what_was_not_read_is_not_found(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[Sequence, int] = {}
    found: list[tuple[int, int]] = []
    preempt, take = Scheduler.preempt, Capacity.take

    def preempted(scheduler: Scheduler, running: Sequence, record: StepRecord) -> None:
        if running.stage is Stage.CONTEXT:
            read[running] = running.num_read
        preempt(scheduler, running, record)

    def taken(capacity: Capacity, request: Sequence, num_running: int) -> bool:
        is_admitted = take(capacity, request, num_running)
        if is_admitted and request in read:
            found.append((read.pop(request), request.num_read))
        return is_admitted

    monkeypatch.setattr(Scheduler, "preempt", preempted)
    monkeypatch.setattr(Capacity, "take", taken)
    rng = random.Random(1)
    prompts = [[rng.randrange(10, 900) for _ in range(count)] for count in (20, 20, 20, *[LENGTH] * 3)]
    terms = {"max_batch": 4, "page_size": 4, "overlap": False, "max_num_tokens": 8}
    for num_pages in (48, 50):
        engine = EngineConfig(max_seq_len=160, policy="max_utilization", num_pages=num_pages, **terms)  # type: ignore[arg-type]
        with LLM(tiny.path, device="cpu", engine=engine) as llm:
            llm.generate(prompts, SamplingParams(max_tokens=60))
    assert any(again > 0 for _, again in found)
    assert all(again <= before < LENGTH for before, again in found), found
