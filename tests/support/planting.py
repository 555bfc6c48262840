"""Python that runs whenever a launched function's work does: planted in a function that a graph captures, it runs at
every replay."""

from __future__ import annotations

from collections.abc import Callable

from weft.runtime.recorder import current_recorder


def at_every_run(call: Callable[[], object]) -> None:
    """Call it now, or, where a launched function is captured, as a node of the graph."""
    recorder = current_recorder()
    if recorder is None:
        call()
    else:
        recorder.add_python("planted", call)
