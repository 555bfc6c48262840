"""Prints the answers of `weft generate` and `weft chat` as they are generated. With several prompts, each answer has a
heading with its prompt's name."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from weft.cli.inputs import NamedPrompt
from weft.errors import InputError, RequestError, escaped, for_terminal

if TYPE_CHECKING:
    from weft.core import Output, Piece, SamplingParams
    from weft.grammar.guide import Guide
    from weft.llm import LLM

CUT = 3
"""The exit code if a guided answer was cut before its guide ended."""


@dataclass
class Run:
    """Answers prompts and prints the answers. A failed answer is returned with its `error`."""

    llm: LLM
    guide: Guide | None
    sampling: SamplingParams
    beam_width: int | None = None
    chat: bool = False
    system: str | None = None
    tools: list[Any] | None = None

    def __call__(self, prompts: Sequence[NamedPrompt]) -> list[Output]:
        inputs = [self.tokens(prompt.text) for prompt in prompts]
        if len(inputs) == 1 and self.beam_width is None and (self.sampling.n or 1) == 1:
            return [print_pieces(self.llm, self.llm.stream(inputs[0], self.sampling, guide=self.guide))]
        outputs = self.llm.generate(inputs, self.sampling, guide=self.guide, beam_width=self.beam_width)
        for text in shown(prompts, outputs):
            print(for_terminal(text) if sys.stdout.isatty() else text)
        for prompt, output in zip(prompts, outputs, strict=True):
            if output.error is not None:
                error = escaped(f"{prompt.name}: {type(output.error).__name__}: {output.error}")
                typer.echo(f"weft: {error}", err=True)
        return outputs

    def tokens(self, prompt: str) -> Sequence[int]:
        """Return the token ids of a prompt. If `chat` is set, the chat template renders the prompt first."""
        if not self.chat:
            return self.llm.client.built.text.prompt(prompt)
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return self.llm.chat_tokens(
            [*first, {"role": "user", "content": whole_message(prompt)}], tools=self.tools
        )


def whole_message(text: str) -> str:
    """The message in a text of a file or of standard input: without the line break at its end, which is not part of it
    and leads small models astray."""
    return text.removesuffix("\n")


def print_pieces(llm: LLM, pieces: Iterator[Piece], stops_on_interrupt: bool = False) -> Output:
    """Print the pieces of an answer as they arrive. Returns the answer; if it failed, its text so far and its `error`.
    With `stops_on_interrupt`, an interrupt cancels the answer and does not raise."""
    from rich.console import Console

    from weft.core import Output
    from weft.tokenizer.text import coloured

    console = Console(highlight=False, soft_wrap=True, emoji=False)
    output = Output(prompt_token_ids=[])  # collects the text, so that a failure keeps it
    try:
        for piece in pieces:
            if console.is_terminal:
                console.print(coloured(llm.tokenizer, piece), end="", markup=False)
            else:
                _write(piece.text)  # unchanged: rich expands tabs and drops other control characters
            output.text += piece.text
            output.token_ids += piece.token_ids
            output.stats.output_tokens += len(piece.token_ids)
            output = piece.output or output
    except (RequestError, InputError) as error:
        if isinstance(error, RequestError) and isinstance(error.output, Output):
            output = error.output
        output.finish_reason, output.error = "error", error
    except KeyboardInterrupt:
        if not stops_on_interrupt:
            raise
        output.finish_reason = "cancelled"
    if output.text or output.error is None:
        _write("\n")  # later output starts on a new line
    return output


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def shown(prompts: Sequence[NamedPrompt], outputs: Sequence[Output]) -> Iterator[str]:
    """Yield the texts of all answers, each after a heading with the prompt's name, and a blank line between answers."""
    gap = ""
    for prompt, output in zip(prompts, outputs, strict=True):
        for number, answer in enumerate(output.outputs, 1):
            which = f", answer {number}" if output.others else ""
            yield f"{gap}==> {escaped(prompt.name)}{which} <=="
            yield answer.text
            gap = "\n"


def note_room(llm: LLM, prompts: Sequence[NamedPrompt], run: Run) -> None:
    """Print a note if a prompt leaves fewer than `max_tokens` positions for its answer."""
    longest = llm.config.max_seq_len
    for prompt in prompts:
        room = longest - len(run.tokens(prompt.text))
        if 0 < room < run.sampling.max_tokens:
            typer.echo(
                f"weft: the engine has {longest} positions; after this prompt an answer has at most {room} tokens, "
                f"not {run.sampling.max_tokens}",
                err=True,
            )
            return


def note_model() -> None:
    """Print a note about the default model, if stderr is a terminal."""
    from weft.config.catalog import PACKAGE_MODEL_NOTE

    if sys.stderr.isatty():
        typer.echo(f"weft: {PACKAGE_MODEL_NOTE}", err=True)


def finish(outputs: Sequence[Output]) -> None:
    """Report answers that are not complete, then set the exit code: 1 if an answer failed, else `CUT` if one was cut
    before its guide ended. If the only prompt failed, its error is raised instead."""
    if len(outputs) == 1 and outputs[0].error is not None:
        raise outputs[0].error
    was_cut = False
    for output in (answer for each in outputs for answer in each.outputs):
        if output.error is not None or output.stats.guided_valid is not False:
            continue
        if output.finish_reason == "stop" and output.stopped_by is None:
            left_out = "; ".join(output.guide_notes)
            typer.echo(f"weft: an answer breaks its schema, of which was left out: {left_out}", err=True)
            continue
        was_cut = True
        by = f"by {output.stopped_by!r}" if output.stopped_by is not None else "by --max-tokens"
        count = len(output.token_ids)
        advice = "; --on-length close completes it" if output.finish_reason == "length" else ""
        typer.echo(
            f"weft: an answer of {count} tokens was cut {by}, before its guide ended{advice}", err=True
        )
    if any(output.error is not None for output in outputs):
        raise typer.Exit(1)
    if was_cut:
        raise typer.Exit(CUT)
