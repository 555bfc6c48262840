"""The way of one request through the code stays short: how many files it enters, and how often a step of the host goes
from one into another. What a device does is not counted: a graph has it."""

from __future__ import annotations

from support.file_trace import FileTrace, changes, traced
from weft import LLM, Guide, SamplingParams, Speculation

MOST_FILES = 75
"""That one warm guided request with EAGLE3 enters, from `generate` to its answer."""

MOST_STEP_FILES = 22
MOST_CHANGES = 35
"""Of one step that decodes one row, with the engine's thread around it."""


def warm_request() -> FileTrace:
    guide = Guide.regex("[a-z]{24}")
    sampling = SamplingParams(max_tokens=32)
    with traced() as trace, LLM("weft-tiny", speculation=Speculation.eagle3(), device="cpu") as llm:
        llm.warm_up()
        llm.generate("Name:", guide=guide, sampling=sampling)
        trace.is_on = True
        output = llm.generate("Name:", guide=guide, sampling=sampling)
        trace.is_on = False
    assert len(output.text) == 24
    return trace


def test_a_request_enters_few_files() -> None:
    trace = warm_request()
    steps = trace.between("engine/engine.py", "Engine.step")
    assert len(steps) > 5
    decoding = steps[2]  # after the prompt's step and the first that decodes
    told = "\n".join(f"{call.caller} -> {call.file}: {call.function}" for call in decoding)
    assert changes(decoding) <= MOST_CHANGES, told
    assert len({call.file for call in decoding}) <= MOST_STEP_FILES, told
    assert len(trace.files) <= MOST_FILES, "\n".join(sorted(trace.files))
    assert not [file for file in trace.files if file.startswith(("engine/beam/", "aici/"))]
