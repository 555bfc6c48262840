"""Grammar masks in a decode loop: yours, eager or captured, or weft's own."""

from weft.guided.capturable import CapturableGuidedDecoder
from weft.guided.decoder import GuidedDecoder
from weft.guided.snapshot import GuidedRequest
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
