"""What a recorder keeps, what a replay finds of it, and what tampering does, on a state that the test drives itself."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from support.grammar.grammars import (
    END,
    CountdownMatcher,
    allowed,
    backend,
    compiled,
    pick,
    small_vocabulary,
    some_guides,
)
from weft import cli
from weft.core import SamplingParams
from weft.engine.flight_recorder import FlightRecorder
from weft.engine.request import Request, Stage
from weft.errors import CapacityError, GuideStateError, InputError
from weft.grammar import CompiledGuide, Guide
from weft.grammar.factory import CompiledFactory
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.grammar.xgrammar.backend import XGrammarBackend
from weft.guided.flight import Operation, SlotEntry, operations
from weft.guided.lane import GrammarLane
from weft.guided.recording import Recording
from weft.guided.state import GuidedState
from weft.replay import replay
from weft.runtime import cpu

SLOTS, DRAFTS = 4, 3
SEEDS = range(20)


class Loop:
    """An engine's loop without a model: whoever ends or fails makes room for a new request; drafts are right, wrong or
    missing; what is verified is drawn from what the masks allow.
    """

    def __init__(
        self,
        seed: int = 0,
        max_drafts: int = DRAFTS,
        guides: Any = None,
        faults: float = 0.02,
        **options: Any,
    ) -> None:
        self.rng = random.Random(seed)
        self.faults = faults  # how often a token is drawn that no grammar takes
        self.guides: list[CompiledGuide] = guides or [compiled(guide) for guide in some_guides()]
        self.state = GuidedState(SLOTS, max_drafts, small_vocabulary().vocab_size, [END])
        self.recorder = FlightRecorder(self.state, small_vocabulary(), **options)
        self.running: dict[int, Request] = {}
        self.all: list[Request] = []

    def mask(self, slot: int, row: int) -> list[int]:
        width = self.state.max_drafts + 1
        return allowed(self.state.masks_host[slot * width + row].numpy())

    def open(self, slot: int, guide: CompiledGuide) -> None:
        """A prompt was read: its matcher comes, and the first token is drawn."""
        request = Request([1], SamplingParams(max_tokens=99), 0, compiled=guide)
        for stage in (Stage.CONTEXT, Stage.GENERATION):
            request.move(stage)
        self.running[slot] = request
        self.all.append(request)
        matcher = guide.matcher()
        self.recorder.watch(request, slot, matcher)
        self.state.push([slot], {slot: matcher})
        self.state.fetch()
        self.verify([slot], 0)

    def verify(self, slots: list[int], num_drafts: int) -> None:
        """Draw the tokens, commit them, and end who has ended or failed."""
        state = self.state
        for slot in slots:
            count = self.rng.randint(0, state.extended(slot)) if num_drafts else 0
            tokens = [*state.drafts_host[:count, slot].tolist(), pick(self.mask(slot, count), self.rng)]
            if self.rng.random() < self.faults:
                tokens[-1] = 299
            state.verified_host[slot, 0] = count
            state.verified_host[slot, 1 : len(tokens) + 1] = torch.tensor(tokens)
        state.commit()
        for slot in slots:
            request, count = self.running[slot], int(state.verified_host[slot, 0])
            tokens = state.verified_host[slot, 1 : count + 2].tolist()
            if state.status(slot)[0]:
                request.fail(GuideStateError(state.status(slot)[1]))
                self.recorder.failed(request)
            else:
                request.output.token_ids += tokens[: state.committed(slot) - len(request.output.token_ids)]
                if state.is_terminated(slot):
                    request.finish("stop")

    def turn(self) -> None:
        """One iteration over whoever runs, drafts guided."""
        state, rng = self.state, self.rng
        ended = {slot: None for slot, request in self.running.items() if request.is_finished}
        self.running = {slot: request for slot, request in self.running.items() if slot not in ended}
        slots = sorted(self.running, key=lambda _: rng.random())
        state.push(slots, ended)
        state.fetch()
        if state.max_drafts:
            state.extend_through(state.max_drafts)
        self.verify(slots, state.max_drafts)
        state.drafts_host.fill_(-1)
        for draft in range(1, state.max_drafts + 1):
            for slot in slots:
                legal = self.mask(slot, draft - 1)
                state.drafts_host[draft - 1, slot] = rng.choice([pick(legal, rng), pick(legal, rng), 7, -1])
            if draft < state.max_drafts:
                state.extend(draft)

    def run(self, turns: int) -> None:
        for _ in range(turns):
            for slot in range(SLOTS):
                idle = slot not in self.running or self.running[slot].is_finished
                if idle and self.rng.random() < 0.7:
                    self.open(slot, self.rng.choice(self.guides))
            self.turn()


@pytest.fixture
def loop() -> Iterator[Callable[..., Loop]]:
    """Makes loops and closes their recorders."""
    made: list[Loop] = []

    def make(*args: Any, **options: Any) -> Loop:
        made.append(Loop(*args, **options))
        return made[-1]

    yield make
    for one in made:
        one.recorder.close()


def agrees(recording: Recording, seeds: range = SEEDS) -> None:
    result = replay(recording, small_vocabulary(), seeds)
    assert result.difference is None, str(result.difference)
    assert result.num_entries > 0
    assert result.num_rows > 0
    assert result.seeds == list(seeds)


def unordered(lane: GrammarLane, stream: Any) -> None:
    """The grammar does not wait for what the model wrote."""


copy_masks = GrammarLane._copy_masks


def unrecorded(lane: GrammarLane, *args: Any) -> None:
    """The model waits for masks that were sent before."""
    kept, lane.mask_event = lane.mask_event, cpu.Event()
    copy_masks(lane, *args)
    lane.mask_event = kept


def unawaited(lane: GrammarLane, *args: Any) -> None:
    """The model reads masks without a wait."""


def unsent(lane: GrammarLane, *args: Any) -> None:
    """No mask goes to the device."""


@pytest.mark.parametrize(
    ("method", "wrong", "what"),
    [
        ("_enter", unordered, "the grammar saw"),
        ("_copy_masks", unrecorded, "the device has mask"),
        ("_copy_masks", unsent, "the device has mask"),
        ("apply_verify", unawaited, "the device has mask"),
        ("apply_draft", unawaited, "the device has mask"),
    ],
)
def test_a_lane_that_lacks_an_order_is_found(
    loop: Any, monkeypatch: pytest.MonkeyPatch, method: str, wrong: Callable[..., None], what: str
) -> None:
    made = loop(2)
    made.run(10)
    recording = made.recorder.recording()
    monkeypatch.setattr(GrammarLane, method, wrong)
    found = replay(recording, small_vocabulary(), SEEDS).difference
    assert found is not None
    assert what in found.what


@pytest.mark.parametrize("max_drafts", [0, 1, 3, 8])
def test_a_whole_run_agrees_under_every_seed(loop: Any, max_drafts: int) -> None:
    made = loop(max_drafts, max_drafts, faults=0.1)
    made.run(15)
    recording = made.recorder.recording()
    assert recording.num_iterations > 15
    assert {"refused"} <= {e.status for o in recording.operations for e in o.entries}
    agrees(recording)


@pytest.mark.parametrize("iterations", [1, 2, 5, 11])
def test_a_window_in_the_middle_of_requests_agrees(loop: Any, iterations: int) -> None:
    for seed in range(6):
        made = loop(seed, iterations=iterations)
        made.run(12 + seed)
        recording = made.recorder.recording()
        assert recording.num_iterations == iterations
        agrees(recording, range(3))


def test_a_window_that_is_cut_anywhere_agrees(loop: Any) -> None:
    """As when it is taken beside a running iteration: the last turn lacks some of its operations."""
    made = loop(3)
    made.run(6)
    recording = made.recorder.recording()
    for end in range(1, len(recording.operations)):
        agrees(replace(recording, operations=recording.operations[:end]), range(1))


def test_the_file_says_the_same(loop: Any, tmp_path: Path) -> None:
    made = loop(1)
    made.run(8)
    for name in ("flight.json", "flight.json.gz"):
        path = made.recorder.write(tmp_path / name, "because")
        loaded = Recording.load(path)
        assert loaded == replace(made.recorder.recording(), reason="because")
    assert (
        gzip.decompress((tmp_path / "flight.json.gz").read_bytes()) == (tmp_path / "flight.json").read_bytes()
    )


def changed(recording: Recording, place: int, slot: int, **fields: Any) -> Recording:
    """The recording with other fields in one entry."""
    operation = recording.operations[place]
    entries = tuple(replace(e, **fields) if e.slot == slot else e for e in operation.entries)
    before, after = recording.operations[:place], recording.operations[place + 1 :]
    return replace(recording, operations=(*before, replace(operation, entries=entries), *after))


def places(
    recording: Recording, name: str, fits: Callable[[SlotEntry], bool]
) -> list[tuple[int, Operation, SlotEntry]]:
    found = [
        (place, operation, entry)
        for place, operation in enumerate(recording.operations)
        for entry in operation.entries
        if operation.name == name and fits(entry)
    ]
    assert len(found) > 3
    return found


def test_a_flipped_draft_is_found_where_it_is(loop: Any) -> None:
    made = loop(4)
    made.run(15)
    recording = made.recorder.recording()
    for place, operation, entry in places(recording, "extend_through", lambda e: len(e.taken) > 0)[::5]:
        drafts = (entry.inputs[0] ^ 1, *entry.inputs[1:])
        found = replay(
            changed(recording, place, entry.slot, inputs=drafts), small_vocabulary(), SEEDS
        ).difference
        assert found is not None
        assert (found.iteration, found.operation, found.slot) == (
            operation.epoch,
            "extend_through",
            entry.slot,
        )
        request = recording.request_of(entry.matcher)
        assert request is not None
        assert found.request == request.id


def test_a_flipped_token_is_found_where_it_is(loop: Any) -> None:
    made = loop(5)
    made.run(15)
    recording = made.recorder.recording()
    fits = lambda e: e.matcher and not e.status and not e.ended and e.inputs[0] == 0  # noqa: E731
    for place, operation, entry in places(recording, "commit", fits)[::5]:
        other = (0, 299)
        found = replay(
            changed(recording, place, entry.slot, inputs=other), small_vocabulary(), SEEDS
        ).difference
        assert found is not None
        assert (found.iteration, found.operation, found.slot) == (operation.epoch, "commit", entry.slot)
        assert "refused" in found.what


def test_a_flipped_hash_is_found_where_it_is(loop: Any) -> None:
    made = loop(6)
    made.run(15)
    recording = made.recorder.recording()
    for name in ("fetch", "extend", "extend_through", "commit"):
        hashed = places(recording, name, lambda e: any(len(row) == 16 for row in e.rows))
        for place, operation, entry in hashed[:: len(hashed) // 3]:
            last = max(i for i, row in enumerate(entry.rows) if len(row) == 16)
            other = f"{int(entry.rows[last], 16) ^ 1:016x}"
            rows = (*entry.rows[:last], other, *entry.rows[last + 1 :])
            found = replay(
                changed(recording, place, entry.slot, rows=rows), small_vocabulary(), SEEDS
            ).difference
            assert found is not None
            assert found.operation.startswith(name)
            assert (found.iteration, found.slot, found.row) == (operation.epoch, entry.slot, last)


def test_another_answer_is_found_when_the_window_begins_behind_it(loop: Any) -> None:
    made = loop(7, iterations=2, guides=[compiled(Guide.regex("[a-z ]{3,900}"))])
    made.run(9)
    recording = made.recorder.recording()
    longest = max(recording.requests, key=lambda r: len(r.tokens))
    requests = tuple(
        replace(r, tokens=(299, *r.tokens[1:])) if r is longest else r for r in recording.requests
    )
    found = replay(replace(recording, requests=requests), small_vocabulary(), range(1)).difference
    assert found is not None
    assert (found.operation, found.request) == ("attach", longest.id)
    assert "token 1 of its answer" in found.what


@pytest.mark.parametrize("is_drafted", [False, True])
def test_a_dead_end_comes_out_as_one_again(is_drafted: bool) -> None:
    """A text begins that no token of the vocabulary can go on with: after "a" there is no "z"."""
    vocabulary = Vocabulary.from_tokens([b"", b"a", b"b"], end_ids=[0])
    guide = XGrammarBackend(vocabulary, threads=1).compile(Guide.choice(["az", "bab"]))
    state = GuidedState(2, 1, 3, [0])
    recorder = FlightRecorder(state, vocabulary)
    for slot, tokens in ((0, [1]), (1, [2, 1, 2])):
        matcher = guide.matcher()
        request = Request([1], SamplingParams(), 0, compiled=guide)
        recorder.watch(request, slot, matcher)
        state.push([slot], {slot: matcher})
        state.fetch()
        if is_drafted:
            state.drafts_host[0, slot] = tokens[0]
            state.extend(1)
        state.verified_host[slot, :3] = torch.tensor([int(is_drafted), *tokens, 0][:3])
        state.commit()
    statuses = [state.status(slot)[0] for slot in (0, 1)]
    assert statuses == ["dead_end", ""]
    recording = recorder.recording()
    assert [o.entries[0].status for o in recording.operations if o.name == "commit"] == statuses
    result = replay(recording, vocabulary, SEEDS)
    assert result.difference is None, str(result.difference)
    ok = changed(recording, len(recording.operations) // 2 - 1, 0, status="")
    found = replay(ok, vocabulary, SEEDS).difference
    assert found is not None
    assert "'dead_end'; it was 'ok'" in found.what


def test_what_is_no_text_is_left_out_with_a_note(loop: Any) -> None:
    own = CompiledFactory(Guide.matcher(lambda: CountdownMatcher(6)), small_vocabulary().vocab_size)
    made = loop(9, guides=[own, compiled(Guide.regex("(ab|a|abc)*c"))])
    made.run(10)
    recording = made.recorder.recording()
    kept = {guide.kind: guide.source for guide in recording.guides}
    assert kept == {"matcher": None, "regex": "(ab|a|abc)*c"}
    result = replay(recording, small_vocabulary(), SEEDS)
    assert result.difference is None
    assert result.num_entries > 0
    assert any("an object of the program (matcher)" in note for note in result.notes)


def test_iterations_without_a_snapshot_and_skipped_ones_agree(loop: Any) -> None:
    for skips in (False, True):
        made = loop(10, guides=[compiled(Guide.regex("[a-z ]{3,900}"))], faults=0)
        made.run(3)
        if skips:
            made.state.push(list(made.running), {}, epoch=made.state.pushed_epoch + 3)
        made.state.fetch()
        assert {made.state.status(slot)[0] for slot in made.running} == {"epoch"}
        agrees(made.recorder.recording())


def test_released_drafts_agree(loop: Any) -> None:
    made = loop(11, guides=[compiled(Guide.regex("[a-z ]{3,900}"))])
    made.run(4)
    for slot in made.running:
        made.state.release(slot)
    made.run(2)
    recording = made.recorder.recording()
    assert "release" in {operation.name for operation in recording.operations}
    agrees(recording)


def test_a_matcher_that_comes_back_goes_on(loop: Any) -> None:
    """A preempted request's matcher gets another slot with the text that it has."""
    made = loop(12, guides=[compiled(Guide.regex("[a-z ]{3,900}"))])
    matcher = made.guides[0].matcher()
    request = Request([1], SamplingParams(), 0, compiled=made.guides[0])
    made.recorder.watch(request, 0, matcher)
    for slot, attach in [(0, {0: matcher}), (2, {0: None, 2: matcher}), (2, {}), (0, {2: None, 0: matcher})]:
        made.state.push([slot], attach)
        made.state.fetch()
        made.state.verified_host[slot, :2] = torch.tensor([0, 100 + slot])
        made.state.commit()
        request.output.token_ids.append(100 + slot)
    assert made.state.status(0) == ("", "")
    recording = made.recorder.recording()
    assert [o.entries[0].position for o in recording.operations if o.name == "commit"] == [1, 2, 3, 4]
    agrees(recording)
    for count in (1, 2, 3):
        made.recorder.iterations = count
        agrees(made.recorder.recording())


def test_memory_is_bounded(loop: Any) -> None:
    made = loop(13, max_bytes=20_000, iterations=60, guides=[compiled(Guide.choice(["ab", "abc"]))])
    made.run(400)
    assert len(made.state.recorded()) <= 20_000
    assert len(made.all) > 500
    assert len(made.recorder._watched) < 250
    recording = made.recorder.recording()
    assert 1 < recording.num_iterations < 60
    assert len(recording.requests) < 200
    agrees(recording, range(2))


def test_recording_changes_nothing() -> None:
    def run(records: bool) -> tuple[list[list[int]], list[int]]:
        made = Loop(14)
        if not records:
            made.recorder.close()
        made.run(20)
        made.recorder.close()
        return [request.output.token_ids for request in made.all], made.state.masks_host.flatten().tolist()

    assert run(True) == run(False)


def test_nothing_is_kept_before_and_after(loop: Any) -> None:
    made = loop(15)
    assert made.recorder.recording().operations == ()
    assert "no iteration" in replay(made.recorder.recording(), small_vocabulary()).notes[0]
    made.run(2)
    assert operations(made.state.recorded())
    made.recorder.close()
    assert made.state.recorded() == b""
    made.run(2)
    assert made.state.recorded() == b""


def test_failures_are_written(loop: Any, tmp_path: Path) -> None:
    made = loop(16, directory=tmp_path, max_files=2)
    stranger = Request([1], SamplingParams(), 0)
    stranger.fail(CapacityError("it never had a slot"))
    made.recorder.failed(stranger)
    made.run(60)
    failed = {request.id for request in made.all if request.output.error is not None}
    made.recorder.close()
    files = sorted(tmp_path.iterdir())
    assert 1 <= len(files) <= 2
    assert sorted(made.recorder.files) == files
    recording = Recording.load(files[0])
    assert "GuideStateError" in recording.reason
    assert "it never had a slot" not in recording.reason
    assert failed & {request.id for request in recording.requests if request.error is not None}
    agrees(recording, range(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": 0}, "at least 1"),
        ({"max_bytes": 100}, "at least that much"),
        ({"directory": "/dev/null/flights"}, "can't be made: Not a directory; give another"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    state = GuidedState(SLOTS, DRAFTS, small_vocabulary().vocab_size, [END])
    with pytest.raises(InputError, match=message):
        FlightRecorder(state, small_vocabulary(), **options)


def test_another_vocabulary_is_refused(loop: Any) -> None:
    made = loop(17)
    made.run(1)
    recording = replace(made.recorder.recording(), fingerprint="0" * 64)
    with pytest.raises(InputError, match="not that of the recording"):
        replay(recording, small_vocabulary())


def broken(data: dict[str, Any], how: str) -> None:
    extends = [o for o in data["operations"] if o["op"] == "extend_through"]
    if how == "format":
        data["format"] = "weft-flight-0"
    elif how == "field":
        del data["guides"]
    elif how == "slot":
        data["operations"][0]["entries"][0]["slot"] = 99
    elif how == "first":
        del data["operations"][0]
    elif how == "drafts":
        extends[0]["argument"] = 9
    elif how == "inputs":
        extends[0]["entries"][0]["inputs"] = [1] * 9
    elif how == "number":
        extends[0]["entries"][0]["inputs"] = [2**70, 1, 1]
    elif how == "order":
        data["operations"] += data["operations"]
    elif how == "token":
        data["requests"][0]["tokens"] = [300]
    elif how == "guide":
        data["requests"][0]["guide"] = 77
    elif how == "operation":
        data["operations"][1]["op"] = "dance"


@pytest.mark.parametrize(
    "how",
    [
        "format",
        "field",
        "slot",
        "first",
        "drafts",
        "inputs",
        "number",
        "order",
        "token",
        "guide",
        "operation",
    ],
)
def test_files_that_are_no_recordings_are_refused(loop: Any, tmp_path: Path, how: str) -> None:
    made = loop(18)
    made.run(4)
    path = made.recorder.write(tmp_path / "flight.json")
    data = json.loads(path.read_text())
    broken(data, how)
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match="not a recording"):
        Recording.load(path)


def test_a_cut_file_is_refused(loop: Any, tmp_path: Path) -> None:
    made = loop(19)
    made.run(2)
    path = made.recorder.write(tmp_path / "flight.json.gz")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="not a recording"):
        Recording.load(path)
    assert isinstance(CliRunner().invoke(cli.app, ["replay", str(path)]).exception, InputError)


def test_the_backend_is_the_grammar_under_test() -> None:
    """The matchers here are native, as an engine's are."""
    assert backend(True).compile(some_guides()[0]).guide == some_guides()[0]
