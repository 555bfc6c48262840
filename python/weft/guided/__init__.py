"""Grammar masks for a decode loop: the engine's, or your own, which may be eager or captured in a graph."""

from weft.guided.capturable import CapturableGuidedDecoder
from weft.guided.decoder import GuidedDecoder, GuidedRequest
from weft.ops.token_mask import allocate_token_bitmask, apply_token_bitmask_

__all__ = [
    "CapturableGuidedDecoder",
    "GuidedDecoder",
    "GuidedRequest",
    "allocate_token_bitmask",
    "apply_token_bitmask_",
]


def __dir__() -> list[str]:
    return list(__all__)
