"""The cost of replays, host functions and the mask kernel."""

from __future__ import annotations

from weft_bench.cli.app import DeviceOption, OutOption, app, finish, load


@app.command()
def replay(device: DeviceOption = "auto", out: OutOption = None) -> None:
    """Microseconds per replayed node: native, Python, device, copy, and across threads."""
    finish(load("replay", out)(device), out)


@app.command()
def hostfunc(device: DeviceOption = "auto", out: OutOption = None) -> None:
    """What launching a host function costs; beside cuda.core's where there is CUDA."""
    finish(load("hostfunc", out)(device), out)


@app.command()
def mask(device: DeviceOption = "auto", out: OutOption = None) -> None:
    """Applying token masks: weft's kernel beside torch and xgrammar's."""
    finish(load("mask", out)(device), out)
