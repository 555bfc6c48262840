"""Common parts of `weft bench`: the app, shared options, and functions that run and report a benchmark."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.errors import WeftError, escaped

if TYPE_CHECKING:
    from weft_bench.report import Report

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Measure weft; each command prints a table and can write JSON.",
)

MODULES = {
    "replay": "runtime.replay",
    "hostfunc": "runtime.hostfunc",
    "mask": "runtime.mask",
    "grammar": "grammar.calls",
    "schemas": "grammar.schemas",
    "validity": "grammar.validity",
    "strict": "grammar.strict",
    "acceptance": "engine.acceptance",
    "overhead": "engine.overhead",
    "step": "engine.step",
    "speed": "engine.speed",
    "serve": "serve.run",
}

ROW_SECONDS = 1800.0
"""A row that takes longer than this has stalled. The process then prints its stacks on stderr and exits."""

DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]
OutOption = Annotated[
    Path | None, typer.Option(help="Write NAME.json, with machine, versions and commit, to this folder.")
]
StrictOption = Annotated[
    bool,
    typer.Option("--strict/--no-strict", help="A schema is enforced whole or refused; or as far as can be."),
]
OpenObjectsOption = Annotated[
    bool, typer.Option("--open-objects", help="Objects that name properties may have others.")
]
ModelOption = Annotated[
    Path | None, typer.Option(help="A model directory with its drafters. Default: weft-tiny.")
]
PromptsOption = Annotated[int, typer.Option(min=1, help="Held-out prompts of each set.")]


def load(name: str, out: Path | None) -> Callable[..., Report]:
    """Return the `run` of a benchmark's module. If `out` is given, it writes its report there after every row."""
    run: Callable[..., Report] = import_module(f"weft_bench.{MODULES[name]}").run

    return lambda *args, **options: measured(out, partial(run, *args, **options))


def measured(out: Path | None, run: Callable[[], Report]) -> Report:
    """Run a benchmark, and return its report. If `out` is given, the report is written there after every row."""
    from weft_bench.rows import keeping

    with keeping(out, ROW_SECONDS):
        return run()


def finish(report: Report, out: Path | None) -> None:
    """Print a report, and write it to `out` if that is given. Exits with status 1 if the report has failures."""
    from rich.console import Console

    console = Console()
    report.show(console)
    if out is not None:
        console.print(f"wrote {report.write(out)}")
    if report.failures:
        raise typer.Exit(1)


def script(main: Callable[..., None]) -> None:
    """Run a stand-alone benchmark (`benchmarks/`). `main` declares options as a command does. An error of weft
    prints one line and exits with status 2."""
    try:
        typer.run(main)
    except WeftError as error:
        print(f"{type(error).__name__}: {escaped(str(error))}", file=sys.stderr)
        raise SystemExit(2) from None
