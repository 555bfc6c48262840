"""What an engine's grammar did is done again: with every way to draft, under load, and where requests fail."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.engine.flight_recorder import record, vocabulary_of
from support.products import rest_slow
from weft import LLM, EngineConfig, Guide, InputError, Output, RequestError, SamplingParams, Speculation, cli
from weft.engine.features.flight_recorder import FlightRecorder
from weft.guided.recording import Recording
from weft.replay import replay

GUIDES = [
    Guide.regex("[a-z]{5,30}"),
    Guide.json(),
    None,
    Guide.choice(["abc", "abd"]),
    Guide.ebnf('root ::= "[" root "]" | "12"'),
    Guide.json_schema(
        {"properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["age"]}
    ),
]
SPECULATIONS = {
    "none": Speculation.none(),
    "eagle3": Speculation.eagle3(num_draft_tokens=3),
    "eagle3 unguided": Speculation.eagle3(num_draft_tokens=3, guide_drafts=False),
    "by batch": Speculation.eagle3(num_draft_tokens={1: 5, 2: 2, 3: 0}),
    "ngram": Speculation.ngram(num_draft_tokens=4),
    "forced+eagle3": Speculation.forced(Speculation.eagle3(num_draft_tokens=3)),
}
SAMPLING = SamplingParams(max_tokens=30, temperature=1.0, seed=3)
# So that it does not outlive the guided ones, by whose iterations a recording counts.
FEW_TOKENS = SamplingParams(max_tokens=5, temperature=1.0, seed=3)


@pytest.fixture
def make() -> Iterator[Callable[..., LLM]]:
    """Makes LLMs of weft-tiny and closes them."""
    made: list[LLM] = []

    def build(speculation: str, **engine: Any) -> LLM:
        config = EngineConfig(max_batch=3, max_seq_len=256, **engine)
        made.append(LLM(device="cpu", speculation=SPECULATIONS[speculation], engine=config))
        return made[-1]

    yield build
    for llm in made:
        llm.close()


def run(llm: LLM) -> list[Output]:
    prompts = [f"Text: Ada {i} is a painter.\nJSON: " for i in range(len(GUIDES))]
    sampling = [FEW_TOKENS if guide is None else SAMPLING for guide in GUIDES]
    outputs: list[Output] = llm.generate(prompts, guide=GUIDES, sampling=sampling)
    return outputs


def sources(speculation: str) -> tuple[str, ...]:
    return tuple(name for name in ("forced", "ngram") if name in speculation)


def check(recorder: FlightRecorder, llm: LLM, seeds: int) -> Recording:
    recording = recorder.recording()
    result = replay(recording, vocabulary_of(llm), range(seeds))
    assert result.difference is None, str(result.difference)
    assert result.notes == []
    assert result.num_rows > 0
    return recording


@rest_slow
@pytest.mark.parametrize("graphs", ["one", "split"])
@pytest.mark.parametrize("speculation", sorted(SPECULATIONS))
def test_a_run_agrees(make: Any, speculation: str, graphs: str) -> None:
    llm = make(speculation, graphs=graphs)
    run(llm)  # compiles the guides, so that below all start together
    recorder = record(llm, sources=sources(speculation))
    run(llm)
    recording = check(recorder, llm, 20 if speculation == "eagle3" else 3)
    assert len(recording.requests) == len(GUIDES)
    recorder.iterations = 5
    assert check(recorder, llm, 3).num_iterations == 5
    recorder.close()


@pytest.mark.parametrize("speculation", ["none", "eagle3", "forced+eagle3"])
def test_iterations_that_overlap_agree(make: Any, speculation: str) -> None:
    """The host has not read iteration i when i + 1 is launched; the window is taken at any moment."""
    llm = make(speculation, overlap=True)
    recorder = record(llm, sources=sources(speculation), iterations=6)
    windows: list[Recording] = []
    engine: Any = llm.engine
    step = engine.step

    def recorded_step(**terms: Any) -> Any:
        record = step(**terms)
        windows.append(recorder.recording())
        return record

    engine.step = recorded_step
    run(llm)
    assert len(windows) > 10
    for window in windows[:: len(windows) // 8]:
        if window.operations:
            result = replay(window, vocabulary_of(llm), range(2))
            assert result.difference is None, str(result.difference)
    recorder.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_requests_that_were_preempted_agree(make: Any, overlap: bool) -> None:
    """Pages for two answers and three who want them: matchers leave their slots and come back."""
    llm = make("eagle3", policy="max_utilization", num_pages=10, overlap=overlap)
    recorder = record(llm)
    guide = Guide.regex("[a-z]{900}")
    sampling = SamplingParams(max_tokens=80, temperature=1.0, seed=5)
    outputs = llm.generate(
        [f"Text: {name}" for name in ("Ada", "Bob", "Eve")], guide=guide, sampling=sampling
    )
    assert [output.error for output in outputs] == [None] * 3
    recording = check(recorder, llm, 5)
    comes = [
        entry.position
        for o in recording.operations
        for entry in o.entries
        if o.name == "fetch" and o.attached.get(entry.slot)
    ]
    assert len(comes) > 3
    assert max(comes) > 0, "nobody came back"
    for count in range(2, recording.num_iterations, 17):
        recorder.iterations = count
        check(recorder, llm, 1)
    recorder.close()


def test_recording_changes_no_token(make: Any) -> None:
    plain = [output.token_ids for output in run(make("eagle3"))]
    llm = make("eagle3")
    recorder = record(llm)
    assert [output.token_ids for output in run(llm)] == plain
    recorder.close()


def test_a_request_that_failed_is_written_and_fails_again(make: Any, tmp_path: Path) -> None:
    """Its guide wants a z at the end, and it forbids every token with one: nothing is left to sample."""
    llm = make("eagle3")
    recorder = record(llm, directory=tmp_path)
    forbidden = [i for i in range(len(llm.tokenizer)) if "z" in llm.tokenizer.decode([i])]
    sampling = SamplingParams(max_tokens=30, logit_bias=dict.fromkeys(forbidden, -math.inf))
    outputs = llm.generate(
        ["Text: Ada.", "Text: Bob."],
        guide=[Guide.regex("[a-y]{3,5}z"), Guide.regex("[a-z]{20}")],
        sampling=[sampling, SAMPLING],
    )
    assert isinstance(outputs[0].error, RequestError)
    assert outputs[1].error is None
    recorder.close()
    (path,) = recorder.files
    recording = Recording.load(path)
    (failed,) = (request for request in recording.requests if request.error is not None)
    assert recording.reason == f"request {failed.id}: {failed.error}"
    assert list(failed.tokens) == outputs[0].token_ids
    statuses = {
        entry.status for o in recording.operations for entry in o.entries if entry.matcher in failed.matchers
    }
    assert statuses == {"", "refused"}

    told = CliRunner().invoke(cli.app, ["replay", str(path), "--seeds", "20"])
    assert told.exit_code == 0, told.output
    assert f"request {failed.id}: {failed.error}" in told.output
    assert "agrees: 2 requests" in told.output
    assert "under 20 schedules" in told.output

    data = json.loads(gzip.decompress(path.read_bytes()))
    commits = (o for o in data["operations"] if o["op"] == "commit" and o["entries"])
    operation = next(o for o in commits if o["entries"][0]["rows"])
    operation["entries"][0]["rows"][0] = "0" * 15 + "7"
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(data))
    told = CliRunner().invoke(cli.app, ["replay", str(changed), "--model", str(llm.model_path)])
    assert told.exit_code == 1, told.output
    slot = operation["entries"][0]["slot"]
    assert f"differs: seed 0, iteration {operation['epoch']}, commit, slot {slot}, request" in told.output
    assert "row 0: the mask is" in told.output


def test_models_that_are_not_there_and_guides_that_are_objects(make: Any, tmp_path: Path) -> None:
    llm = make("none")
    recorder = record(llm)
    llm.generate("x", guide=Guide.matcher(lambda: Anything()), sampling=SAMPLING)
    path = recorder.write(tmp_path / "flight.json")
    told = CliRunner().invoke(cli.app, ["replay", str(path)])
    assert "a file does not keep" in told.output
    assert isinstance(told.exception, InputError)
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "model": str(tmp_path / "gone")}))
    told = CliRunner().invoke(cli.app, ["replay", str(path)])
    assert "--model" in str(told.exception)
    told = CliRunner().invoke(cli.app, ["replay", str(tmp_path / "none.json")])
    assert "no such file" in str(told.exception)
    recorder.close()


class Anything:
    """A matcher that takes everything."""

    def accept(self, token: int) -> bool:
        return True

    def fill(self, row: Any) -> None:
        row[:] = -1

    def rollback(self, count: int) -> None:
        pass

    def is_terminated(self) -> bool:
        return False
