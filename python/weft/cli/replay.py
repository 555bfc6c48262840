"""`weft replay`: repeats the grammar work of a flight recorder's file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.config import model_directory
from weft.errors import InputError, escaped

if TYPE_CHECKING:
    from weft.guided.recording import Recording
    from weft.replay import Replayed


def replay(
    file: Annotated[Path, typer.Argument(help="A file that the flight recorder wrote (.json or .json.gz).")],
    seeds: Annotated[int, typer.Option(min=1, help="How many schedules to try: seeds 0 to N-1.")] = 20,
    model: Annotated[
        Path | None,
        typer.Option(help="The directory of the model, if it is not where the file says."),
    ] = None,
) -> None:
    """Replay the grammar work of a recording on the CPU under seeded schedules, and report the first difference.

    The exit code is 0 if everything agrees, 1 if something differs, and 2 for a file that can't be replayed.
    """
    from weft.grammar.vocabulary.tokenizer import Vocabulary
    from weft.guided.recording import Recording
    from weft.replay import replay as do_again

    if not file.is_file():
        raise InputError(f"{file}: no such file; give one that the flight recorder wrote")
    recording = Recording.load(file)
    path = model_directory(model) if model is not None or recording.model is None else Path(recording.model)
    if not path.is_dir():
        raise InputError(f"{path}: the recording's model is not there; give its directory with --model")
    vocabulary = Vocabulary.from_huggingface(path, vocab_size=recording.vocab_size)
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for line in describe(recording):
        console.print(escaped(line), markup=False)
    result = do_again(recording, vocabulary, range(seeds))
    for line in summarise(result):
        console.print(escaped(line), markup=False)
    if result.difference is not None:
        raise typer.Exit(1)
    if not result.num_entries:
        raise InputError(f"{file}: nothing of it can be done again; the notes say why")


def describe(recording: Recording) -> list[str]:
    """Return lines about a recording: the reason for it, its size, failed requests, and packages that have another
    version here."""
    from importlib.metadata import version

    from weft.version import __version__

    lines = [
        f"recorded: {recording.reason}",
        f"  {recording.num_iterations} snapshots, {len(recording.operations)} operations, "
        f"{len(recording.requests)} requests, {recording.num_slots} slots, up to {recording.max_drafts} drafts",
    ]
    libraries = {name: version(name) for name in ("xgrammar", "llguidance", "wasmtime")}
    for name, here in {"weft": __version__, **libraries}.items():
        recorded = recording.versions.get(name, "unknown")
        if recorded != here:
            lines.append(f"  note: made with {name} {recorded}; this is {here}")
    lines += [f"  request {r.id}: {r.error}" for r in recording.requests if r.error is not None]
    return lines


def summarise(result: Replayed) -> list[str]:
    """Return lines about the result of a replay."""
    lines = [f"note: {note}" for note in result.notes]
    if result.difference is not None:
        return [*lines, f"differs: {result.difference}"]
    if not result.num_entries:
        return lines
    return [
        *lines,
        f"agrees: {result.num_requests} requests over {result.num_iterations} snapshots under {len(result.seeds)} "
        f"schedules; compared {result.num_entries} slot states, {result.num_rows} mask hashes, {result.num_seen} masks "
        "on the device",
    ]
