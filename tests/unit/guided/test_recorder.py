"""What a recorder keeps, and that a replay agrees with it, on a state that the test drives itself."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.engine.requests import engine_request
from support.grammar.grammars import (
    END,
    CountdownMatcher,
    backend,
    compiled,
    small_vocabulary,
    some_guides,
)
from support.grammar.recorded_loop import DRAFTS, SEEDS, SLOTS, Loop, changed
from weft.core import SamplingParams
from weft.engine.features.flight_recorder import FlightRecorder
from weft.errors import CapacityError, InputError
from weft.grammar import Guide
from weft.grammar.kinds.custom import CompiledFactory
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.grammar.xgrammar.backend import XGrammarBackend
from weft.guided.flight import operations
from weft.guided.grammar_stream import GrammarStream
from weft.guided.recording import RecordedEdit, Recording
from weft.guided.state import GuidedShape, GuidedState
from weft.replay import replay
from weft.runtime import cpu


def agrees(recording: Recording, seeds: range = SEEDS) -> None:
    result = replay(recording, small_vocabulary(), seeds)
    assert result.difference is None, str(result.difference)
    assert result.num_entries > 0
    assert result.num_rows > 0
    assert result.seeds == list(seeds)


def unordered(grammar: GrammarStream, stream: Any) -> None:
    """The grammar does not wait for what the model wrote."""


copy_masks = GrammarStream._copy_masks


def unrecorded(grammar: GrammarStream, *args: Any) -> None:
    """The model waits for masks that were sent before."""
    kept, grammar.mask_event = grammar.mask_event, cpu.Event()
    copy_masks(grammar, *args)
    grammar.mask_event = kept


def unawaited(grammar: GrammarStream, *args: Any) -> None:
    """The model reads masks without a wait."""


def unsent(grammar: GrammarStream, *args: Any) -> None:
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
def test_a_grammar_stream_that_lacks_an_order_is_found(
    loop: Any, monkeypatch: pytest.MonkeyPatch, method: str, wrong: Callable[..., None], what: str
) -> None:
    made = loop(2)
    made.run(10)
    recording = made.recorder.recording()
    monkeypatch.setattr(GrammarStream, method, wrong)
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


def test_a_file_of_an_older_version_is_read(loop: Any, tmp_path: Path) -> None:
    """Edits were called splices, with other names for what they drop and append, and so was a slot's status."""
    made = loop(1)
    made.run(8)
    recording = made.recorder.recording()
    request, *others = recording.requests
    edited = replace(request, edits=(RecordedEdit(since=3, at=2, dropped=(1,), num_appended=2),))
    recording = replace(recording, requests=(edited, *others))
    place = next(i for i, operation in enumerate(recording.operations) if operation.entries)
    operation = recording.operations[place]
    entries = (replace(operation.entries[0], status="edited"), *operation.entries[1:])
    operations = list(recording.operations)
    operations[place] = replace(operation, entries=entries)
    recording = replace(recording, operations=tuple(operations))
    path = tmp_path / "flight.json"
    recording.save(path)
    text = path.read_text()
    for new, old in (
        ("edits", "splices"),
        ("dropped", "taken"),
        ("num_appended", "num_put"),
        ("edited", "spliced"),
    ):
        assert f'"{new}"' in text
        text = text.replace(f'"{new}"', f'"{old}"')
    path.write_text(text)
    assert Recording.load(path) == recording


@pytest.mark.parametrize("is_drafted", [False, True])
def test_a_dead_end_comes_out_as_one_again(is_drafted: bool) -> None:
    """A text begins that no token of the vocabulary can go on with: after "a" there is no "z"."""
    vocabulary = Vocabulary.from_tokens([b"", b"a", b"b"], end_ids=[0])
    guide = XGrammarBackend(vocabulary, threads=1).compile(Guide.choice(["az", "bab"]))
    state = GuidedState(GuidedShape(2, 1, 3, [0]))
    recorder = FlightRecorder(state, vocabulary)
    for slot, tokens in ((0, [1]), (1, [2, 1, 2])):
        matcher = guide.matcher()
        request = engine_request([1], SamplingParams(), 0, compiled=guide)
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
    request = engine_request([1], SamplingParams(), 0, compiled=made.guides[0])
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
    stranger = engine_request([1], SamplingParams(), 0)
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
    state = GuidedState(GuidedShape(SLOTS, DRAFTS, small_vocabulary().vocab_size, [END]))
    with pytest.raises(InputError, match=message):
        FlightRecorder(state, small_vocabulary(), **options)


def test_the_backend_is_the_grammar_under_test() -> None:
    """The matchers here are native, as an engine's are."""
    assert backend(True).compile(some_guides()[0]).guide == some_guides()[0]
