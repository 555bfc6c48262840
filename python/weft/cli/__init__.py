"""The command line: `weft generate`, `weft inspect`, `weft bench`, `weft replay`, `weft demo`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from weft.cli.generate import Device, DeviceOption, HostTasks, HostTasksOption, ModelOption, generate
from weft.cli.inputs import DEFAULT, Guided, choose_speculation
from weft.cli.replay import replay
from weft.config import is_debug, model_directory
from weft.errors import WeftError, escaped

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Language-model decoding under a grammar and with speculation, inside one CUDA graph.",
)
app.command()(generate)
app.command()(replay)


@app.command()
def inspect(
    model: ModelOption = None,
    graph: Annotated[
        bool, typer.Option("--graph", help="Dump the nodes and edges of a captured guided iteration.")
    ] = False,
    device: DeviceOption = Device.auto,
    host_tasks: HostTasksOption = HostTasks.callback,
) -> None:
    """Say what weft found: versions, drivers, GPU, grammar interfaces, and what is in a model directory."""
    from weft import inspection

    console = Console(highlight=False, soft_wrap=True)
    for line in inspection.report(model_directory(model)):
        console.print(escaped(line), markup=False)
    if graph:
        chosen = choose_speculation(DEFAULT, None, "3", Guided.auto, False, model)
        for line in inspection.graph_dump(model, device.value, chosen, host_tasks.value):
            console.print(line, markup=False)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where to write the trace and its picture.")] = Path("out"),
) -> None:
    """Show guided decoding with EAGLE3 drafts on weft-tiny, in one captured graph."""
    from weft import demo as shown

    shown.run(out)


def main() -> None:
    """Entry point: errors of weft are one line on stderr and exit code 2."""
    from weft.bench.cli import app as bench_app

    app.add_typer(bench_app, name="bench")
    try:
        app()
    except (WeftError, OSError) as error:
        if is_debug():
            raise
        print(f"weft: {type(error).__name__}: {escaped(str(error))}", file=sys.stderr)
        raise SystemExit(2) from None
