"""Repeats the grammar work of a recording and compares the results."""

from weft.guided.recording import Recording
from weft.replay.run import Difference, Replayed, replay

__all__ = ["Difference", "Recording", "Replayed", "replay"]


def __dir__() -> list[str]:
    return list(__all__)
