"""What a request holds while it is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weft.engine.kv.cache import KvSequence
from weft.engine.sequence import Request
from weft.grammar.base import Matcher


@dataclass(frozen=True)
class BranchRow:
    """One row of the next iteration: `slot` goes on with the text of slot `parent` and `token`, which stands at
    `position`, in `pages`, under `matcher`."""

    slot: int
    parent: int
    token: int
    position: int
    pages: Sequence[int]
    matcher: Matcher | None = None


@dataclass(frozen=True)
class Branching:
    """How texts part before the next iteration: its rows, and pages to copy before, (from, to)."""

    rows: Sequence[BranchRow]
    copies: Sequence[tuple[int, int]] = ()


class Search(Protocol):
    """Decides on the host which continuations of a request's texts go on, an iteration at a time."""

    num_offers: int
    """How many continuations each row must offer."""

    @property
    def num_rows(self) -> int:
        """Rows of the next iteration; 1 for the prompt."""

    def answer(self, row: int) -> Sequence[int]:
        """The answer so far of one of these rows."""

    def take_branching(self) -> Branching | None:
        """How texts part before the next iteration; None where that was told."""


@dataclass(eq=False, slots=True)
class Running:
    """A request with slots and pages, from its admission until nothing in flight names it any more.

    It was admitted with `num_context` tokens to read, `resumed_at` of them of its answer; `num_read` are read or under
    way. The answer may have `max_new_tokens` tokens. Of the batches in flight `in_flight` name it, which add
    `num_promised` tokens at least. With `next_cache_at` tokens of the answer another page is full. It `is_spliced` from
    when its matcher wrote the end of its text anew until the text is read again. A request that is searched has more
    than one slot, and a `search`. It `has_left` when its slots are to be given back.
    """

    request: Request
    slots: tuple[int, ...]
    kv: KvSequence
    resumed_at: int
    max_new_tokens: int
    num_context: int
    num_read: int
    is_plain: bool
    is_guided: bool
    has_program: bool
    slot: int = field(init=False)
    in_flight: int = 0
    num_promised: int = 0
    next_cache_at: int = 0
    is_spliced: bool = False
    has_left: bool = False
    search: Search | None = None

    def __post_init__(self) -> None:
        self.slot = self.slots[0]

    @property
    def calls_host(self) -> bool:
        """Whether a logits processor of the request's is called on the host."""
        return self.request.processor is not None and self.request.processor.is_on_host

    @property
    def num_unread(self) -> int:
        """Tokens to read that are not under way yet."""
        return self.num_context - self.num_read
