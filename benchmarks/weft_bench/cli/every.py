"""The command that runs all benchmarks one after another."""

from __future__ import annotations

from typing import Annotated

import typer

from weft_bench.cli.app import MODULES, DeviceOption, OutOption, app

BENCHES = tuple(name for name in MODULES if name not in ("schemas", "validity"))  # the others need files
HOST_ONLY = ("grammar", "strict")  # they use no device


@app.command("all")
def everything(
    device: DeviceOption = "auto",
    out: OutOption = None,
    time_limit: Annotated[
        float, typer.Option(min=0, help="Seconds that a benchmark may take; 0: as many as it wants.")
    ] = 3600,
) -> None:
    """Run every benchmark, each in a separate process. On a GPU, benchmarks that do not use it
    are left out. A failure is noted in the benchmark's report, and the others continue."""
    from weft.runtime import get as get_runtime
    from weft_bench.children import run_benchmark

    on_gpu = get_runtime(device).device.type != "cpu"
    if on_gpu:
        typer.echo(f"left out, since the host does all of it: {', '.join(HOST_ONLY)}")
    failed = []
    for name in (name for name in BENCHES if not (on_gpu and name in HOST_ONLY)):
        options = [] if name in HOST_ONLY else ["--device", device]
        options += ["--out", str(out)] if out is not None else []
        why = run_benchmark([name, *options], name, out, time_limit or None)
        if why is not None:
            failed.append(f"{name}: {why}")
    if failed:
        typer.echo("\n".join(["failed:", *failed]))
        raise typer.Exit(1)
