"""The native commits of a batch add the same tokens as Python's, and end the same answers at the same places."""

from __future__ import annotations

import random
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

from weft.config import package_model_path
from weft.core import SamplingParams
from weft.core.request import Request
from weft.engine.device.results import StepResults
from weft.engine.output import OutputProcessor
from weft.engine.runner.in_flight import InFlightBatch
from weft.engine.sequence import NEVER, Sequence, Stage
from weft.engine.stats import StepRecord
from weft.grammar.vocabulary.tokenizer import Vocabulary, token_texts
from weft.guided.answers import Answers
from weft.guided.state import GuidedShape, GuidedState
from weft.runtime.buffers import Received
from weft.tokenizer.files import load_tokenizer
from weft.tokenizer.stop_words import StopSequences, StopTexts, StopTokens
from weft.tokenizer.text import RunningText

SLOTS, DRAFTS, END = 6, 3, 1
TIMES = ("submitted_at", "first_token_at", "last_token_at", "ended_at")


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(package_model_path())


@pytest.fixture(scope="module")
def texts():
    return token_texts(Vocabulary.from_huggingface(package_model_path()))


class PythonAnswers(Answers):
    """Leaves every iteration to Python."""

    def open(self, slot: int, sequence: object, **rules) -> None:
        super().open(slot, sequence, is_plain=False)


class Side:
    """An output processor without an engine, with a sequence in each slot."""

    def __init__(self, kind: type[Answers], make, slots: int = SLOTS) -> None:
        state = GuidedState(GuidedShape(SLOTS, DRAFTS, 4096, (END,)))
        self.cached: list[tuple[int, int]] = []
        scheduler = SimpleNamespace(
            remove=lambda sequence: None,
            retire=lambda left: None,
            cache=self.cache,
            pace=SimpleNamespace(note=lambda *_: None),
            draft_lengths=SimpleNamespace(pass_over=lambda *_: None),
        )
        self.output = OutputProcessor(
            SimpleNamespace(check=lambda: None), scheduler, None, state, kind(state, ["a drafter"], None),
            frozenset({END}), None, lambda sequence, count: ["a drafter"] * count,
        )  # fmt: skip
        self.sequences = [make(slot) for slot in range(slots)]
        for slot, sequence in enumerate(self.sequences):
            sequence.move(Stage.CONTEXT)
            sequence.move(Stage.GENERATION)
            sequence.slots, sequence.slot = (slot,), slot
            sequence.max_new_tokens = sequence.request.sampling.max_tokens
            sequence.next_cache_at = 4 if slot % 2 else NEVER

    def cache(self, sequence: Sequence) -> None:
        self.cached.append((sequence.index, len(sequence.output.token_ids)))
        sequence.next_cache_at += 5

    def step(self, rows: torch.Tensor, number: int) -> StepRecord:
        """Process an iteration. The first one gives first tokens."""
        record, batch = StepRecord(number, 0.0), InFlightBatch()
        live = [sequence for sequence in self.sequences if not sequence.is_finished]
        if number:
            batch.launch(live)
        else:
            for sequence in live:
                batch.read(sequence, SimpleNamespace(error=None, first=0), True)
        batch.is_launched = True
        event = SimpleNamespace(synchronize=lambda: None)
        batch.results = StepResults(Received(rows, event), SLOTS + 1, None, drafts=number > 0)
        self.output.process(batch, record, keep=0)
        return record


def facts(sequence: Sequence):
    output = sequence.output
    stats = {name: value for name, value in asdict(output.stats).items() if name not in TIMES}
    error = str(output.error) if output.error else None
    return output.token_ids, output.origins, output.finish_reason, output.stopped_by, error, stats


def words_of(kind: str, tokenizer, texts, draw: random.Random, words: list[str]):
    if kind == "none":
        return None
    found = RunningText(tokenizer, StopTexts(words, texts))
    if kind == "texts":
        return found
    sequences = StopSequences([[draw.randrange(40, 48) for _ in range(draw.randint(1, 3))] for _ in range(3)])
    return StopTokens(sequences, found if kind == "both" else None)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("kind", ["none", "tokens", "texts", "both"])
def test_native_commits_and_python_s_agree(seed, kind, tokenizer, texts) -> None:
    draw = random.Random(f"{kind} {seed}")
    story = tokenizer.encode("A fox — “quick” 你好, naïve 🦊 — jumps over {the} lazy dog.\n\nThe end.")
    words = draw.sample(["jumps over", "—", "好,", "🦊 —", ".\n\nT", "zzz", "end", "“q", "é"], 3)

    def make(index: int) -> Sequence:
        own = random.Random(f"{kind} {seed} {index}")
        sampling = SamplingParams(
            max_tokens=own.choice([3, 10, 40, 200]),
            min_tokens=own.choice([0, 0, 3]),
            stop_token_ids=own.choice([(), (), (45,), (40, 41)]),
        )
        end_ids = own.choice([None, None, frozenset({44})])
        sequence = Sequence(Request([5, 6], sampling, is_prepared=True, end_ids=end_ids), index=index)
        sequence.stop_words = words_of(kind, tokenizer, texts, own, words)
        return sequence

    sides = Side(Answers, make), Side(PythonAnswers, make)
    places = [draw.randrange(len(story)) for _ in range(SLOTS)]
    for number in range(40):
        rows = torch.zeros((SLOTS + 1) * (DRAFTS + 3), dtype=torch.int64)
        verified, num_verified = rows[: -(SLOTS + 1)].view(SLOTS + 1, -1), rows[-(SLOTS + 1) :]
        for slot in range(SLOTS):
            drafts = draw.randint(0, DRAFTS) if number else 0
            count = draw.randint(0, drafts)
            if kind in ("texts", "both") and draw.random() < 0.8:
                tokens = [story[(places[slot] + i) % len(story)] for i in range(DRAFTS + 1)]
                places[slot] += count + 1
            else:
                tokens = [draw.randrange(40, 60) for _ in range(DRAFTS + 1)]
            if draw.random() < 0.02:
                tokens[draw.randint(0, DRAFTS)] = draw.choice([END, -1])
            verified[slot] = torch.tensor([count, *tokens])
            num_verified[slot] = drafts
        records = [side.step(rows, number) for side in sides]
        for native, python in zip(sides[0].sequences, sides[1].sequences, strict=True):
            assert facts(native) == facts(python)
        assert sorted(records[0].accepted_lengths) == sorted(records[1].accepted_lengths)
        for name in (
            "generated_tokens",
            "speculating",
            "speculated_tokens",
            "proposed_drafts",
            "accepted_drafts",
        ):
            assert getattr(records[0], name) == getattr(records[1], name)
    assert sorted(sides[0].cached) == sorted(sides[1].cached)


class NeverFed(RunningText):
    """Fails the test if Python looks for words."""

    def feed(self, token: int) -> str | None:
        pytest.fail("Python looks for a stop word")


def test_an_iteration_that_ends_nothing_needs_no_python(tokenizer, texts) -> None:
    sampling = SamplingParams(max_tokens=100, stop_token_ids=(45,))

    def make(index: int) -> Sequence:
        sequence = Sequence(Request([5, 6], sampling, is_prepared=True), index=index)
        sequence.stop_words = RunningText(tokenizer, StopTexts(["never to be found"], texts))
        return sequence

    side = Side(Answers, make, slots=1)
    rows = torch.zeros((SLOTS + 1) * (DRAFTS + 3), dtype=torch.int64)
    rows[1] = 46
    side.step(rows, 0)
    side.sequences[0].stop_words.__class__ = NeverFed
    for number in range(1, 9):
        assert side.step(rows, number).generated_tokens == 1
    assert side.sequences[0].output.token_ids == [46] * 9


def test_texts_that_bytes_cannot_tell_are_left_to_python(tokenizer, texts) -> None:
    assert RunningText(tokenizer, StopTexts(["a \ufffd"], texts)).search is None
    assert RunningText(tokenizer, StopTexts(["a"])).search is None
    assert RunningText(tokenizer, StopTexts(["a"], texts)).search is not None


@pytest.mark.parametrize("seed", range(30))
def test_skipped_tokens_count_as_seen(seed, tokenizer) -> None:
    draw = random.Random(seed)
    story = tokenizer.encode("one two — three 🦊🦊 four — 你好 five, six — seven")
    tokens = [draw.choice(story) for _ in range(30)] if seed % 2 else story
    fed, skipped = RunningText(tokenizer, ["🦊 f", "— s"]), RunningText(tokenizer, ["🦊 f", "— s"])
    cut = draw.randrange(len(tokens))
    for token in tokens[:cut]:
        fed.feed(token)
    skipped.skip(tokens[:cut])
    for token in tokens[cut:]:
        word = fed.feed(token)
        assert skipped.feed(token) == word
        assert (skipped.text, skipped.num_shown) == (fed.text, fed.num_shown)
        assert word is None or skipped.found_at == fed.found_at
