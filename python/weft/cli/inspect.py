"""`weft inspect`: reports versions, the GPU and a model directory, or dumps a captured iteration."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.cli import options as o
from weft.cli.inputs import choose_speculation
from weft.cli.options import DEFAULT, Device, Guided
from weft.errors import InputError, escaped


def inspect(
    model: o.NamedModel = None,
    same_model: o.Model = None,
    graph: Annotated[
        bool, typer.Option("--graph", help="Dump the nodes and edges of a captured guided iteration.")
    ] = False,
    device: o.Where = Device.auto,
    host_tasks: o.TaskKind = o.HOST_TASKS,
) -> None:
    """Report the installed versions, the GPU, and how a model directory would run. Reads no weights."""
    from rich.console import Console

    from weft.cli import inspection
    from weft.config import model_directory

    if model is not None and same_model is not None:
        raise InputError(f"two models: {model!r}, and {same_model!r} of --model; give one")
    model = model or same_model
    console = Console(highlight=False, soft_wrap=True)
    for line in inspection.report(model_directory(model), device.value):
        console.print(escaped(line), markup=False)
    if graph:
        chosen = choose_speculation(DEFAULT, None, "3", Guided.auto, False, model)
        for line in inspection.graph_dump(model, device.value, chosen, host_tasks.value):
            console.print(line, markup=False)
