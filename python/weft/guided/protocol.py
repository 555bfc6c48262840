"""What an iteration asks of the grammar, wherever its work runs: beside the model in one graph (`lane.py`), or on the
host between captured parts (`host_lane.py`). The order of calls in an iteration is that of `lane.py`.

S slots, K drafts, B rows, T = 1 + K positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from weft.grammar.base import Matcher
from weft.guided.proposals import Proposals
from weft.guided.state import GuidedState
from weft.runtime.interface import Stream


class Lane(Protocol):
    """`drafts` int64 [K, S+1] and `verified` int64 [S+1, K+2] on the device are the engine's to write; `proposed` int64
    [K, S+1] is what the host drafted, and `token_mask` int32 [(S+1)*(K+1)] says which slots have masks."""

    state: GuidedState
    proposals: Proposals | None
    drafts: Tensor
    verified: Tensor
    proposed: Tensor
    token_mask: Tensor

    def push(self, slots: Sequence[int], attach: Mapping[int, Matcher | None], num_drafts: int = 0) -> object:
        """The next iteration's slots, each with `num_drafts` drafts to verify, and which matchers come and go."""

    def follow(self, stream: Stream) -> None:
        """Take the snapshot of an iteration without guided rows."""

    def first_mask(self, stream: Stream, slots_B: Tensor) -> None:
        """The masks of rows that were just attached."""

    def verify_masks(self, stream: Stream, slots_B: Tensor, num_drafts: int) -> None:
        """The masks behind drafts, beside the target's forward."""

    def apply_verify(
        self, stream: Stream, logits_BTV: Tensor, slots_B: Tensor, d2t: Tensor | None = None
    ) -> None:
        """Mask the target's logits."""

    def set_temperatures(self, stream: Stream, temperature_BT: Tensor, slots_B: Tensor) -> None:
        """Behind `apply_verify`: put the temperatures that matchers want, where they want one."""

    def commit_masks(self, stream: Stream, slots_B: Tensor) -> None:
        """Commit what was verified."""

    def propose(self, stream: Stream, num_drafts: int, is_committed: bool) -> None:
        """Let the host propose drafts."""

    def wait_proposals(self, stream: Stream) -> None:
        """Let `stream` wait for them."""

    def apply_draft(
        self, stream: Stream, logits_BD: Tensor, slots_B: Tensor, j: int, d2t: Tensor | None = None
    ) -> None:
        """Mask the drafter's logits of draft j."""

    def extend_masks(self, stream: Stream, j: int, slots_B: Tensor) -> None:
        """Take draft j."""

    def join(self, stream: Stream, num_drafts: int = 0) -> None:
        """Let `stream` wait for all of it; `num_drafts` drafts were made."""

    def synchronize(self) -> None:
        """Wait for what the lane does on a stream of its own."""

    def close(self) -> None:
        """Wait for what is in flight."""
