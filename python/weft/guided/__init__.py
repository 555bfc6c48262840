"""Grammar masks in a decode loop: yours, eager or captured, or weft's own."""

from weft.guided.capturable import CapturableGuidedDecoder
from weft.guided.decoder import GuidedDecoder
from weft.guided.lane import GrammarLane
from weft.guided.snapshot import GuidedRequest
from weft.guided.state import GuidedState, OperationCounters
from weft.ops.token_mask import allocate_token_bitmask, apply_token_bitmask_

__all__ = [
    "CapturableGuidedDecoder",
    "GrammarLane",
    "GuidedDecoder",
    "GuidedRequest",
    "GuidedState",
    "OperationCounters",
    "allocate_token_bitmask",
    "apply_token_bitmask_",
]
