"""A recording's grammar work done again, to see whether it comes out the same."""

from weft.guided.recording import Recording
from weft.replay.run import Difference, Replayed, replay

__all__ = ["Difference", "Recording", "Replayed", "replay"]


def __dir__() -> list[str]:
    return list(__all__)
