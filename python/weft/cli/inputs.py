"""Reads and checks the inputs of a command line: prompts, speculation and sampling."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from weft import registry
from weft.cli.options import Drafter, Guided
from weft.errors import InputError, brief

if TYPE_CHECKING:
    from weft.config import DraftTokens, GuideDrafts, Speculation

AUTO = "eagle3"
"""The drafter that "auto" picks if the model directory has its weights."""
LONGEST_NAME = 40


@dataclass(frozen=True)
class NamedPrompt:
    """A prompt and the heading of its answer: the file's name, or the beginning of the text."""

    name: str
    text: str


def own_directory(drafter: str) -> str | None:
    """Return the subdirectory of a model that holds this drafter's weights; None for a drafter without weights."""
    name: str | None = getattr(registry.load("drafters", drafter), "directory", None)
    return name


def check_output(path: Path | None, option: str) -> None:
    """Raise `InputError` if an output file can't be written. Called before the run, so that its results are not
    lost."""
    if path is None:
        return
    if path.is_dir():
        raise InputError(f"{option}: {str(path)!r} is a directory; give the name of a file")
    if not path.parent.is_dir():
        raise InputError(f"{option}: there is no directory {str(path.parent)!r} to write to; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{option}: {str(path)!r} can't be written; its permissions forbid it")


def read_text(path: Path, what: str) -> str:
    """Read a text file in UTF-8. `what` is the option that names the file, for errors."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{what}: can't read {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{what}: {str(path)!r} is not UTF-8 text") from None


def read_prompts(given: list[str], files: list[Path]) -> list[NamedPrompt]:
    """Return the prompts in order: arguments, then files. Without either, standard input is the prompt."""
    if not given and not files:
        if sys.stdin.isatty():
            raise InputError("no prompt; give one as an argument, with --file, or on standard input")
        given = ["-"]
    prompts = [
        NamedPrompt("standard input", _standard_input())
        if text == "-"
        else NamedPrompt(brief(text.strip(), LONGEST_NAME), text)
        for text in given
    ]
    prompts += [NamedPrompt(str(path), read_text(path, "--file")) for path in files]
    if not all(prompt.text for prompt in prompts):
        raise InputError(
            "the prompt is empty; give some text as an argument, with --file, or on standard input"
        )
    return prompts


def _standard_input() -> str:
    try:
        return typer.get_text_stream("stdin", encoding="utf-8", errors="strict").read()
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8 text") from None


def read_draft_tokens(given: str) -> DraftTokens:
    """Parse a number, or a schedule by batch size such as 1:5,4:3,16:0."""
    from weft.config import MAX_DRAFT_TOKENS

    try:
        if ":" not in given:
            return int(given)
        return {int(batch): int(count) for batch, count in (part.split(":") for part in given.split(","))}
    except ValueError:
        raise InputError(
            f"--num-draft-tokens is {given!r}; give a number, 1 to {MAX_DRAFT_TOKENS}, "
            "or batch sizes with numbers such as 1:5,4:3,16:0"
        ) from None


def choose_speculation(
    drafter: Drafter,
    path: Path | None,
    num_draft_tokens: str,
    guided: Guided,
    forced: bool,
    model: str | Path | None,
    adaptive: bool = False,
) -> Speculation:
    """Return the speculation that the command line selects. "auto" is EAGLE3 if the model has a head, else none."""
    from weft.config import MAX_DRAFT_TOKENS, Speculation, model_directory

    count = read_draft_tokens(num_draft_tokens)
    if isinstance(count, int) and not 1 <= count <= MAX_DRAFT_TOKENS:
        raise InputError(
            f"--num-draft-tokens is {count}; it must be 1 to {MAX_DRAFT_TOKENS} "
            "(for no drafts use --speculation none)"
        )
    drafts: GuideDrafts = "auto" if guided is Guided.auto else guided is Guided.on
    name = drafter.value
    if name == "auto":
        own = model_directory(model) / str(own_directory(AUTO))
        name = AUTO if path is not None or own.is_dir() else "none"
    if path is not None and (name == "none" or own_directory(name) is None):
        takers = [known for known in registry.names("drafters") if own_directory(known)]
        raise InputError(f"--head is for {', '.join(takers)}; --speculation is {name}")
    if name == "none":
        if forced:
            return Speculation.forced(num_draft_tokens=count, adaptive=adaptive)
        return Speculation.none()
    if name == "forced":
        return Speculation.forced(num_draft_tokens=count, adaptive=adaptive)
    chosen = Speculation.named(name, path, num_draft_tokens=count, guide_drafts=drafts, adaptive=adaptive)
    return Speculation.forced(chosen) if forced else chosen


def read_bias(entries: list[str]) -> dict[int, float] | None:
    """Parse the entries TOKEN=BIAS of --logit-bias."""
    try:
        return {int(token): float(value) for token, value in (e.split("=") for e in entries)} or None
    except ValueError:
        raise InputError(f"--logit-bias is {entries}; give TOKEN_ID=BIAS, such as 17=-5 or 17=-inf") from None
