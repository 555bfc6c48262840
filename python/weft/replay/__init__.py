"""A recording's grammar work done again, to see whether it comes out the same."""

from weft.replay.run import Difference, Replayed, replay

__all__ = ["Difference", "Replayed", "replay"]
