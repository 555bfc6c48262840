"""Commands that measure replays, host functions and the mask kernel."""

from __future__ import annotations

from weft_bench.cli.app import DeviceOption, OutOption, app, finish, load


@app.command()
def replay(device: DeviceOption = "auto", out: OutOption = None) -> None:
    """Measure the microseconds that a replay takes per node. Nodes are native, Python, device and copy nodes, and nodes
    of other threads."""
    finish(load("replay", out)(device), out)


@app.command()
def hostfunc(device: DeviceOption = "auto", out: OutOption = None) -> None:
    """Measure the launch of a host function. With CUDA, cuda.core's launch is measured too, for comparison."""
    finish(load("hostfunc", out)(device), out)


@app.command()
def mask(device: DeviceOption = "auto", out: OutOption = None) -> None:
    """Compare mask kernels: weft's, torch's and xgrammar's."""
    finish(load("mask", out)(device), out)
