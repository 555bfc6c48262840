"""Grammar masks in a decode loop: your own, eager or captured, or the engine's."""

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
