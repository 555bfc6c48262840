"""Plants Python code in a launched function. In a captured graph it runs at every replay."""

from __future__ import annotations

from collections.abc import Callable

from weft.runtime.recorder import current_recorder


def at_every_run(call: Callable[[], object]) -> None:
    """Call `call` now or, while a launched function is captured, add it as a node of the graph."""
    recorder = current_recorder()
    if recorder is None:
        call()
    else:
        recorder.add_python("planted", call)
