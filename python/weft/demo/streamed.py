"""Streams an answer, with accepted draft tokens in another colour."""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from weft.core import Output, SamplingParams
from weft.demo.breaks import guide_of
from weft.llm import LLM
from weft.tiny.records import Record
from weft.tokenizer.text import coloured

SAMPLING = SamplingParams(max_tokens=192)


def show(console: Console, llm: LLM, record: Record) -> None:
    """Print the prompt, and stream its guided answer."""
    console.rule("guided, several tokens at a time", characters="-")
    console.print(Panel(Text(record.prompt.rstrip()), title="prompt"))
    has_colours = console.color_system is not None and not console.no_color
    title = "answer (green: drafted and accepted)" if has_colours else "answer"
    text, output = Text(), None
    # In a pipe nothing can be redrawn, so the panel is printed once, at the end.
    with Live(console=console, refresh_per_second=30, transient=True) as live:
        for piece in llm.stream(record.prompt, guide=guide_of(record.schema), sampling=SAMPLING):
            text.append_text(coloured(llm.tokenizer, piece))
            if console.is_terminal:
                live.update(Panel(text, title=title))
            output = piece.output or output
    assert output is not None
    console.print(Group(Panel(text, title=title), Text(told(output))), "")


def told(output: Output) -> str:
    """A line about the answer's tokens and iterations."""
    stats = output.stats
    return (
        f"{len(output.token_ids)} tokens in {stats.iterations} iterations: EAGLE3 drafts 3 in each, and "
        f"{stats.acceptance_length:.2f} tokens are kept on average, the target's own one included."
    )
