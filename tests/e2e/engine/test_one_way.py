"""A plain guided request runs no code of the features that it does not use."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType

import weft
from weft import LLM, Guide, SamplingParams, Speculation

PACKAGE = Path(weft.__file__).parent


def test_a_request_enters_no_feature_that_it_does_not_use() -> None:
    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            entered.add(frame.f_code.co_filename)

    threading.setprofile(note)  # of the engine's thread, which starts below
    try:
        with LLM("weft-tiny", speculation=Speculation.eagle3(), device="cpu") as llm:
            llm.warm_up()
            entered.clear()
            sys.setprofile(note)
            output = llm.generate(
                "Name:", guide=Guide.regex("[a-z]{24}"), sampling=SamplingParams(max_tokens=32)
            )
            files = set(entered)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert len(output.text) == 24
    assert str(PACKAGE / "engine" / "engine.py") in files
    assert [file for file in files if "/beam/" in file or file.startswith(str(PACKAGE / "aici"))] == []
