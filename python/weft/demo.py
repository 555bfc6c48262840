"""`weft demo`: a record, a schema, the answer streaming out, a table, and a picture of one iteration."""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from weft.config import EngineConfig, Speculation
from weft.core import Output, SamplingParams
from weft.grammar.guide import Guide
from weft.llm import LLM
from weft.text import coloured
from weft.tiny.records import Record, example
from weft.trace import record, write_chrome
from weft.trace.plot import plot
from weft.trace.slice import begins_of

PROMPTS = 12
SAMPLING = SamplingParams(max_tokens=192)


def run(out: Path) -> None:
    """Show it all; the trace and the picture are written to the folder `out`."""
    console = Console(highlight=False)
    rng = random.Random(5)
    records = [example(rng, "heldout") for _ in range(PROMPTS)]
    shown = max(records[:6], key=lambda r: len(r.completion))
    fast = LLM(speculation=Speculation.eagle3(num_draft_tokens=3), engine=EngineConfig(max_batch=1))
    plain = LLM(engine=EngineConfig(max_batch=1))
    stream_one(console, fast, shown)
    compare(console, fast, plain, records)
    picture(console, fast, shown, out)
    fast.close()
    plain.close()


def stream_one(console: Console, llm: LLM, shown: Record) -> None:
    """The prompt, the schema, and the answer as it comes; drafted-and-accepted tokens in green."""
    console.print(
        Panel(Text(shown.prompt.rstrip()), title="prompt (weft-tiny, a model of 2 million parameters)")
    )
    console.print(Panel(Text(json.dumps(shown.schema)), title="JSON schema, the guide"))
    text = Text()
    output: Output | None = None
    with Live(Panel(text, title="answer"), console=console, refresh_per_second=30) as live:
        for piece in llm.stream(shown.prompt, guide=Guide.json_schema(shown.schema), sampling=SAMPLING):
            text.append_text(coloured(llm.tokenizer, piece))
            live.update(Panel(text, title="answer (green: drafted and accepted)"))
            output = piece.output or output
    assert output is not None
    json.loads(output.text)
    console.print(
        f"{len(output.token_ids)} tokens in {output.stats.iterations} iterations, "
        f"acceptance length {output.stats.acceptance_length:.2f}, finish reason {output.finish_reason}\n"
    )


def compare(console: Console, fast: LLM, plain: LLM, records: list[Record]) -> None:
    """Guided and not, speculative and not, over the same prompts."""
    table = Table(title=f"{len(records)} prompts, batch 1, greedy, on {fast.runtime.device}")
    for name in ("guide", "drafts", "tokens/s", "acceptance length", "tokens per iteration", "valid JSON"):
        table.add_column(name, justify="left" if name in ("guide", "drafts") else "right")
    for guided in (False, True):
        for llm, drafts in ((plain, "none"), (fast, "EAGLE3, 3")):
            table.add_row("JSON schema" if guided else "none", drafts, *measure(llm, records, guided))
    console.print(table)


def measure(llm: LLM, records: list[Record], guided: bool) -> list[str]:
    """One row of the table."""
    outputs: list[Output] = []
    for i, r in enumerate([records[0], *records]):
        guide = Guide.json_schema(r.schema) if guided else None
        if guide is not None:
            llm.compile(guide).result()
        output = llm.generate(r.prompt, guide=guide, sampling=SAMPLING)
        if i:
            outputs.append(output)
    stats = [output.stats for output in outputs]
    drafted = sum(s.drafted_iterations for s in stats)
    tokens = sum(s.drafted_tokens for s in stats)
    return [
        f"{statistics.median(s.tokens_per_second for s in stats):.0f}",
        f"{tokens / drafted:.2f}" if drafted else "-",
        f"{sum(s.output_tokens for s in stats) / max(1, sum(s.iterations for s in stats)):.2f}",
        f"{sum(is_json(output.text) for output in outputs)}/{len(outputs)}",
    ]


def is_json(text: str) -> bool:
    """Whether the text parses."""
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True


def picture(console: Console, llm: LLM, shown: Record, out: Path) -> None:
    """A trace of a whole answer, and a picture of a few iterations in its middle."""
    guide: Any = Guide.json_schema(shown.schema)
    with record() as slices:
        llm.generate(shown.prompt, guide=guide, sampling=SAMPLING)
    trace, image = out / "demo-trace.json", out / "demo-trace.svg"
    write_chrome(slices, trace)
    starts = [s.begin_us for s in begins_of(slices, "target_forward")]
    first, last = starts[len(starts) // 2], starts[min(len(starts) // 2 + 2, len(starts) - 1)]
    middle = [s for s in slices if first <= s.begin_us < last]
    plot(middle, image, "two captured iterations: the grammar's work beside the model's")
    console.print(f"trace (open it in Perfetto): {trace}\npicture: {image}")
