"""Where states are kept and loaded: the host's positions are those of the device.

The model has no recurrent layers, so nothing reads the rows. The test follows them: it knows after which tokens each
slot's memory would be, from the lengths and accepted drafts on the device.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.engine.drafters import DRAFTERS, save_random_drafters
from support.engine.references import Checkpoint
from support.products import each_value
from weft import LLM, EngineConfig, SamplingParams, Speculation
from weft.config import ResolvedConfig
from weft.engine.runner.in_flight import InFlightBatch
from weft.engine.runner.runner import ModelRunner
from weft.engine.scheduler.scheduler import Capacity, Schedule, Settle
from weft.engine.sequence import Rest, Sequence


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, tiny: Checkpoint) -> Path:
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)


@dataclass
class Followed:
    """The rows and slots of an engine. `rows[r]` is the text whose state row r has. `read[s]` is the number of tokens
    that slot s has read of its prompt; None once it has decoded."""

    rows: dict[int, list[int]] = field(default_factory=dict)
    read: dict[int, int | None] = field(default_factory=dict)
    kept: dict[tuple[int, int], list[list[int]]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def keep(self, sequence: Sequence, rest: Rest, settle: Settle | None) -> None:
        if settle is None:
            return
        text = [*sequence.text, *([rest.next_token] if rest.next_token is not None else [])]
        self.kept.setdefault((settle.slot, settle.row), []).append(text[: rest.position])
        self.counts["preempted" if not sequence.is_finished else "ended"] += 1
        self.counts["whole"] += rest.position == sequence.num_tokens
        self.counts["next"] += rest.next_token is not None

    def settle(self, runner: ModelRunner, settle: Settle) -> None:
        runner.stream.synchronize()
        state, slot, owed = runner.parts.state, settle.slot, settle.num_owed
        text = self.kept[settle.slot, settle.row].pop(0)
        num_read = self.read[slot]
        if num_read is not None:
            assert owed == -1 and len(text) == num_read
            self.counts["in a prompt"] += 1
        else:
            length, num_accepted = int(state.length[slot]), int(state.verified[slot, 0])
            assert -1 <= owed <= num_accepted
            base = length - num_accepted
            assert len(text) == (length if owed == -1 else base + owed), (length, num_accepted, owed)
            self.counts["owed"] += owed > 0
            self.counts["cut"] += 0 <= owed < num_accepted
        self.rows[settle.row] = text

    def launch(self, runner: ModelRunner, schedule: Schedule) -> None:
        for settle in schedule.settles:
            self.settle(runner, settle)
        loads = {load.slot: load.row for load in schedule.loads}
        for sequence in schedule.admitted:
            num_reused = sequence.kv.num_reused
            assert (sequence.slot in loads) == (num_reused > 0)
            if num_reused:
                assert self.rows[loads[sequence.slot]] == sequence.text[:num_reused]
                self.counts["loaded"] += 1
                self.counts["resumed"] += num_reused == sequence.num_tokens - 1
            self.read[sequence.slot] = num_reused
        counts = dict(schedule.reading)
        for save in schedule.saves:
            stop = save.sequence.num_read
            assert stop - counts[save.sequence] < save.position <= min(stop, save.sequence.num_context - 1)
            self.rows[save.row] = save.sequence.text[: save.position]
            self.counts["saved"] += 1

    def launched(self, batch: InFlightBatch) -> None:
        for sequence in batch.reading:
            self.read[sequence.slot] = batch.prompts[sequence].position
        for sequence in (*batch.first, *batch.decoding):
            self.read[sequence.slot] = None


def follow(monkeypatch: pytest.MonkeyPatch) -> Followed:
    followed = Followed()
    resolved, launch, end_at = EngineConfig.resolved, ModelRunner.launch, Capacity.end_at

    def with_states(
        config: EngineConfig, limit: int, num_drafts: int, device: str = "cpu", has_states: bool = False
    ) -> ResolvedConfig:
        return resolved(config, limit, num_drafts, device, has_states=True)

    def launched(runner: ModelRunner, schedule: Schedule) -> InFlightBatch:
        followed.launch(runner, schedule)
        for sequence in schedule.admitted:  # there are no states to load
            sequence.kv.snapshot = None
        batch = launch(runner, schedule)
        followed.launched(batch)
        return batch

    def ended(capacity: Capacity, rest: Rest, sequence: Sequence) -> Settle | None:
        settle = end_at(capacity, rest, sequence)
        followed.keep(sequence, rest, settle)
        return settle

    monkeypatch.setattr(EngineConfig, "resolved", with_states)
    monkeypatch.setattr(ModelRunner, "launch", launched)
    monkeypatch.setattr(Capacity, "end_at", ended)
    return followed


WAYS: dict[str, dict[str, Any]] = {
    "plain": {"overlap": False},
    "overlap": {"overlap": True},
    "overlap, eager": {"overlap": True, "graphs": "none"},
    "few rows": {"overlap": True, "num_snapshots": 3},
    "few tokens": {"overlap": True, "max_num_tokens": 40, "prefill_chunk": 16},
    "few pages": {"policy": "max_utilization", "num_pages": 36, "max_num_tokens": 32},
    "few pages, overlap": {"policy": "max_utilization", "num_pages": 36, "overlap": True},
    "no partial pages": {"overlap": True, "partial_reuse": False},
    "a host": {"overlap": True, "num_pages": 40, "host_cache_bytes": 8 << 20},
}


@each_value
@pytest.mark.parametrize("drafter", ["none", "ngram", "eagle3", "random mtp chain"])
@pytest.mark.parametrize("way", WAYS)
def test_rows_have_the_states_of_their_texts(
    tiny: Checkpoint, path: Path, monkeypatch: pytest.MonkeyPatch, way: str, drafter: str
) -> None:
    followed = follow(monkeypatch)
    rng = random.Random(3)
    speculation = Speculation.none() if drafter == "none" else DRAFTERS[drafter](path, 3)
    engine = EngineConfig(**{"max_batch": 4, "max_seq_len": 160, "page_size": 8, **WAYS[way]})
    system = [rng.randrange(10, 900) for _ in range(20)]
    texts = [[*system, *(rng.randrange(10, 900) for _ in range(rng.randrange(3, 30)))] for _ in range(6)]
    with LLM(tiny.path, device="cpu", engine=engine, speculation=speculation) as llm:
        stops = list({token for output in llm.generate(texts) for token in output.token_ids[7:9]})
        for turn in range(4):
            sampling = [
                SamplingParams(max_tokens=rng.randrange(1, 20), stop_token_ids=stops[: 3 * (i % 2)])
                for i in range(len(texts))
            ]
            outputs = llm.generate(texts, sampling=sampling)
            assert all(output.error is None for output in outputs)
            llm.client.call(llm.engine.kv.check)
            if turn < 3:  # the last turn's answers are regenerated
                for text, output in zip(texts, outputs, strict=True):
                    text += [*output.token_ids, *(rng.randrange(10, 900) for _ in range(rng.randrange(1, 9)))]
                    del text[110:]
        usage = llm.engine.kv.usage()
    counts = followed.counts
    assert usage.snapshot_hits == counts["loaded"] > 0 and counts["saved"] > 0
    assert usage.snapshots <= usage.max_snapshots == (engine.num_snapshots or 8)
    if drafter != "random mtp chain":
        assert counts["ended"] > 0


def test_a_prompt_that_is_preempted_goes_on_where_it_was(
    tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = follow(monkeypatch)
    rng = random.Random(1)
    prompts = [[rng.randrange(10, 900) for _ in range(count)] for count in (20, 20, 20, 90, 90, 90)]
    for num_pages in (48, 50):
        engine = EngineConfig(
            max_batch=4,
            max_seq_len=160,
            page_size=4,
            num_pages=num_pages,
            overlap=False,
            max_num_tokens=8,
            policy="max_utilization",
        )
        with LLM(tiny.path, device="cpu", engine=engine) as llm:
            outputs = llm.generate(prompts, SamplingParams(max_tokens=60))
            assert all(output.error is None for output in outputs)
            llm.client.call(llm.engine.kv.check)
    assert followed.counts["in a prompt"] and followed.counts["loaded"], followed.counts
