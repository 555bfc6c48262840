"""Commands that measure replays, host functions and the mask kernel."""

from __future__ import annotations

from weft_bench.cli.app import DeviceOption, OutOption, app, finish, load


@app.command()
def replay(device: DeviceOption = "auto", out: OutOption = None) -> None:
    """Microseconds per replayed node: native, Python, device, copy, and across threads."""
    finish(load("replay", out)(device), out)


@app.command()
def hostfunc(device: DeviceOption = "auto", out: OutOption = None) -> None:
    """The cost of launching a host function, with cuda.core's for comparison if there is CUDA."""
    finish(load("hostfunc", out)(device), out)


@app.command()
def mask(device: DeviceOption = "auto", out: OutOption = None) -> None:
    """Applying token masks: weft's kernel compared with torch's and xgrammar's."""
    finish(load("mask", out)(device), out)
