"""`weft bench`: each command measures one claim, prints a table, and writes JSON where asked."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from weft.bench.report import Report

app = typer.Typer(no_args_is_help=True, help="Measure weft; each command prints a table and can write JSON.")

BENCHES = ("replay", "hostfunc", "mask", "grammar")

DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]
OutOption = Annotated[
    Path | None, typer.Option(help="Write NAME.json, with machine, versions and commit, to this folder.")
]


def load(name: str) -> Callable[..., Report]:
    """The `run` of a benchmark's module."""
    run: Callable[..., Report] = import_module(f"weft.bench.{name}").run
    return run


def finish(report: Report, out: Path | None) -> None:
    console = Console()
    report.show(console)
    if out is not None:
        console.print(f"wrote {report.write(out)}")


@app.command()
def replay(device: DeviceOption = "auto", out: OutOption = None) -> None:
    """Microseconds per replayed node: native, Python, device, copy, and across threads."""
    finish(load("replay")(device), out)


@app.command()
def hostfunc(device: DeviceOption = "auto", out: OutOption = None) -> None:
    """What launching a host function costs; beside cuda.core's where there is CUDA."""
    finish(load("hostfunc")(device), out)


@app.command()
def mask(device: DeviceOption = "auto", out: OutOption = None) -> None:
    """Applying token masks: weft's kernel beside torch and xgrammar's."""
    finish(load("mask")(device), out)


@app.command()
def grammar(out: OutOption = None) -> None:
    """Calls of a grammar matcher: native beside Python."""
    finish(load("grammar")(), out)


@app.command("all")
def everything(device: DeviceOption = "auto", out: OutOption = None) -> None:
    """Every benchmark, one after another."""
    for name in BENCHES:
        finish(load(name)() if name == "grammar" else load(name)(device), out)
