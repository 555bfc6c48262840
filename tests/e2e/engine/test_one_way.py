"""A plain guided request runs no code of the features that it does not use."""

from __future__ import annotations

from support.file_trace import traced
from weft import LLM, Guide, SamplingParams, Speculation


def test_a_request_enters_no_feature_that_it_does_not_use() -> None:
    guide = Guide.regex("[a-z]{24}")
    sampling = SamplingParams(max_tokens=32)
    with traced() as trace, LLM("weft-tiny", speculation=Speculation.eagle3(), device="cpu") as llm:
        llm.warm_up()
        trace.is_on = True
        output = llm.generate("Name:", guide=guide, sampling=sampling)
        trace.is_on = False
    assert len(output.text) == 24
    assert "engine/engine.py" in trace.files
    assert [file for file in trace.files if "/beam/" in file or file.startswith("aici/")] == []
