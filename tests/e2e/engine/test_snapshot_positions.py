"""Where states are kept and loaded: the host's positions are those of the device.

The test follows the rows and slots: it knows after which tokens each slot's memory is, from the lengths and accepted
drafts on the device. Answers are those of transformers, so the states are right, too.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from support.engine.checkpoints import save_eagle3, save_mtp
from support.engine.drafters import DRAFTERS
from support.families import HYBRIDS
from support.families import save as save_family
from support.products import each_value
from weft import LLM, EngineConfig, SamplingParams, Speculation
from weft.engine.runner.in_flight import InFlightBatch
from weft.engine.runner.runner import ModelRunner
from weft.engine.scheduler.scheduler import Capacity, Schedule, Settle
from weft.engine.sequence import Rest, Sequence

TIE = 1e-3
"""A difference of logits that rounding may turn round."""


@dataclass
class Hybrid:
    """A directory with a model of convolutions and attention, and with random drafters. `network` is transformers'."""

    path: Path
    network: Any

    @torch.inference_mode()
    def assert_likeliest(self, text: list[int], answer: list[int]) -> None:
        """Each token of the answer has the largest logit after the tokens before it."""
        logits = self.network(torch.tensor([text + answer]), use_cache=False).logits[0, len(text) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        assert (chosen > logits.max(1).values - TIE).all()


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Hybrid:
    path = tmp_path_factory.mktemp("hybrid")
    network = save_family("lfm2", HYBRIDS["lfm2"], path)
    config = network.config
    save_eagle3(path / "eagle3", config.vocab_size, config.hidden_size, config.num_hidden_layers)
    save_mtp(path / "chain", config.vocab_size, config.hidden_size, modules=8)
    return Hybrid(path, network)


@dataclass
class Followed:
    """The rows and slots of an engine. `rows[r]` is the text whose state row r has. `read[s]` is the number of tokens
    that slot s has read of its prompt; None once it has decoded."""

    rows: dict[int, list[int]] = field(default_factory=dict)
    read: dict[int, int | None] = field(default_factory=dict)
    kept: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def keep(self, sequence: Sequence, rest: Rest, settle: Settle | None) -> None:
        if settle is None:
            return
        text = [*sequence.text, *([rest.next_token] if rest.next_token is not None else [])]
        self.kept[settle.slot, settle.row] = text[: rest.position]
        self.counts["preempted" if not sequence.is_finished else "ended"] += 1
        self.counts["whole"] += rest.position == sequence.num_tokens
        self.counts["next"] += rest.next_token is not None

    def settle(self, runner: ModelRunner, settle: Settle) -> None:
        runner.stream.synchronize()
        state, slot, owed = runner.parts.state, settle.slot, settle.num_owed
        text = self.kept.pop((settle.slot, settle.row))
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
        rows = [settle.row for settle in schedule.settles]
        assert len({*rows}) == len(rows), "the device writes the rows at the same time"
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
    launch, end_at = ModelRunner.launch, Capacity.end_at

    def launched(runner: ModelRunner, schedule: Schedule) -> InFlightBatch:
        followed.launch(runner, schedule)
        batch = launch(runner, schedule)
        followed.launched(batch)
        return batch

    def ended(capacity: Capacity, rest: Rest, sequence: Sequence) -> Settle | None:
        settle = end_at(capacity, rest, sequence)
        followed.keep(sequence, rest, settle)
        return settle

    monkeypatch.setattr(ModelRunner, "launch", launched)
    monkeypatch.setattr(Capacity, "end_at", ended)
    return followed


WAYS: dict[str, dict[str, Any]] = {
    "plain": {"overlap": False},
    "overlap": {"overlap": True},
    "overlap, eager": {"overlap": True, "graphs": "none"},
    "few rows": {"overlap": True, "num_snapshots": 3},
    "one row": {"overlap": True, "num_snapshots": 1},
    "few tokens": {"overlap": True, "max_num_tokens": 40, "prefill_chunk": 16},
    "few pages": {"policy": "max_utilization", "num_pages": 36, "max_num_tokens": 32},
    "few pages, overlap": {"policy": "max_utilization", "num_pages": 36, "overlap": True},
    "no partial pages": {"overlap": True, "partial_reuse": False},
    "a host": {"overlap": True, "num_pages": 40, "host_cache_bytes": 8 << 20},
}


@each_value
@pytest.mark.parametrize("drafter", ["none", "ngram", "random eagle3", "random mtp chain"])
@pytest.mark.parametrize("way", WAYS)
def test_rows_have_the_states_of_their_texts(
    hybrid: Hybrid, monkeypatch: pytest.MonkeyPatch, way: str, drafter: str
) -> None:
    followed = follow(monkeypatch)
    rng = random.Random(3)
    speculation = Speculation.none() if drafter == "none" else DRAFTERS[drafter](hybrid.path, 3)
    engine = EngineConfig(**{"max_batch": 4, "max_seq_len": 160, "page_size": 8, **WAYS[way]})
    system = [rng.randrange(10, 900) for _ in range(20)]
    texts = [[*system, *(rng.randrange(10, 900) for _ in range(rng.randrange(3, 30)))] for _ in range(6)]
    with LLM(hybrid.path, device="cpu", engine=engine, speculation=speculation) as llm:
        stops = list({token for output in llm.generate(texts) for token in output.token_ids[7:9]})
        for turn in range(4):
            sampling = [
                SamplingParams(
                    max_tokens=rng.randrange(1, 20), temperature=0, stop_token_ids=stops[: 3 * (i % 2)]
                )
                for i in range(len(texts))
            ]
            outputs = llm.generate(texts, sampling=sampling)
            for text, output in zip(texts, outputs, strict=True):
                assert output.error is None
                hybrid.assert_likeliest(text, output.token_ids)
            llm.client.call(llm.engine.kv.check)
            if turn < 3:  # the last turn's answers are regenerated
                for text, output in zip(texts, outputs, strict=True):
                    text += [*output.token_ids, *(rng.randrange(10, 900) for _ in range(rng.randrange(1, 9)))]
                    del text[110:]
        usage = llm.engine.kv.usage()
    counts = followed.counts
    assert usage.snapshot_hits == counts["loaded"] and counts["saved"] > 0
    assert counts["loaded"] > 0 or engine.num_snapshots == 1  # it is evicted before its text is continued
    assert usage.snapshots <= usage.max_snapshots == (engine.num_snapshots or 8)
    if drafter != "random mtp chain":
        assert counts["ended"] > 0


def test_a_prompt_that_is_preempted_goes_on_where_it_was(
    hybrid: Hybrid, monkeypatch: pytest.MonkeyPatch
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
        with LLM(hybrid.path, device="cpu", engine=engine) as llm:
            outputs = llm.generate(prompts, SamplingParams(max_tokens=60, temperature=0, min_tokens=60))
            assert all(output.error is None for output in outputs)
            llm.client.call(llm.engine.kv.check)
    assert followed.counts["in a prompt"] and followed.counts["loaded"], followed.counts
