"""`weft demo`: shows answers that break their schema without a guide, a streamed answer with drafts, the speedup from
drafts, and a timeline of a few iterations.

All results are generated and measured during the run. The output is readable in a terminal, in a pipe and without
colours.
"""

from __future__ import annotations

import random
from pathlib import Path

from rich.console import Console

from weft.config import EngineConfig, Speculation
from weft.demo import breaks, picture, speed, streamed
from weft.errors import InputError
from weft.llm import LLM
from weft.tiny.records import example

PROMPTS = 12


def run(out: Path, console: Console | None = None) -> None:
    """Run the whole demo. The trace and the picture are written to the folder `out`."""
    console = console or Console(highlight=False, markup=False)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{out}: can't be made to write to: {error.strerror}; give --out another folder"
        ) from None
    rng = random.Random(5)
    records = [example(rng, "heldout") for _ in range(PROMPTS)]
    longest = max(records[:6], key=lambda record: len(record.completion))
    drafts = Speculation.eagle3(num_draft_tokens=3, guide_drafts=True)
    fast = LLM(speculation=drafts, engine=EngineConfig(max_batch=1))
    plain = LLM(engine=EngineConfig(max_batch=1))
    try:
        breaks.show(console, plain)
        streamed.show(console, fast, longest)
        speed.show(console, fast, plain, records)
        picture.show(console, fast, longest, out)
    finally:
        fast.close()
        plain.close()
