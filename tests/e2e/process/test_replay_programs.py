"""A recording keeps WASM programs: they do again what they did, with the prompt they read and the text they wrote."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from support.engine.flight_recorder import record, vocabulary_of
from support.wasm.digits import EXAMPLES, changed
from support.wasm.guides import PROMPT, forced, later, replacing, zeros
from weft import LLM, EngineConfig, GuideStateError, SamplingParams, Speculation, cli
from weft.grammar import Guide
from weft.guided.recording import Recording
from weft.replay import replay

SAMPLING = SamplingParams(max_tokens=16)


def as_long_as_the_prompt() -> Guide:
    """So many digits as the prompt has characters, as it reads them, divided by 8."""
    answered = "(call $return_result (local.get $at) (local.get $size)))"
    counted = "(global.set $left (i32.div_u (local.get $size) (i32.const 8)))"
    return Guide.wasm(changed(answered, f"{counted} {answered}").encode(), trusted=True)


def test_programs_agree(tmp_path: Path) -> None:
    """The whole, and windows that begin anywhere: in the middle of texts that were written anew, too."""
    guides = [replacing(zeros()), replacing(zeros()[:1]), as_long_as_the_prompt(), forced()]
    guides.append(Guide.after(".", Guide.wasm(EXAMPLES / "wasm_digits.wat", "3", trusted=True)))
    sampling = [SamplingParams(max_tokens=20, temperature=1.5, seed=seed) for seed in range(len(guides))]
    config = EngineConfig(max_batch=4, overlap=True)
    with LLM(device="cpu", speculation=Speculation.eagle3(num_draft_tokens=2), engine=config) as llm:
        recorder, vocabulary = record(llm), vocabulary_of(llm)
        outputs = llm.generate([PROMPT] * len(guides), guide=guides, sampling=sampling)
        recording = Recording.load(recorder.write(tmp_path / "flight.json.gz"))
        windows = []
        for recorder.iterations in range(2, recording.num_iterations, 3):
            windows.append(recorder.recording())
        recorder.close()
    assert [output.error for output in outputs] == [None] * len(guides)
    put = {edit.num_appended for request in recording.requests for edit in request.edits}
    assert put == {1, 2}
    result = replay(recording, vocabulary, range(3))
    assert result.difference is None, str(result.difference)
    assert result.notes == []
    assert result.num_requests == len(guides)
    for window in windows:
        result = replay(window, vocabulary, range(1))
        assert result.difference is None, str(result.difference)


def test_a_program_that_failed_fails_again(tmp_path: Path) -> None:
    with LLM(device="cpu") as llm:
        recorder = record(llm, directory=tmp_path)
        output = llm.generate(
            ["Year: ", PROMPT], guide=[later("unreachable"), Guide.regex("[0-9]{5}")], sampling=SAMPLING
        )[0]
        assert isinstance(output.error, GuideStateError)
        llm.generate(PROMPT, sampling=SAMPLING)  # the turn in which the other ended is over
        recorder.close()
    told = CliRunner().invoke(cli.app, ["replay", str(recorder.files[0]), "--seeds", "2"])
    assert told.exit_code == 0, told.output
    assert str(output.error) in told.output
    assert "agrees: 2 requests" in told.output
    recording = Recording.load(recorder.files[0])
    for request in recording.requests:
        assert request.guide is not None
        program = recording.guides[request.guide].payload
        assert bool(request.prompt) == (program is not None) == (request.error is not None)
