"""Drafts that the host proposes, by slot: text given with the request, text that the grammar forces, n-grams of the
text, and n-grams of lookahead decoding.

C++ makes them (`csrc/drafting/proposals.h`); here they get their host memory, and become host tasks. A task runs on the
grammar's stream after the `commit` of an iteration, for the slots of its snapshot. Given text comes first, forced text
if there is none; n-grams continue either.

S slots and one more for padding, K drafts, W tokens of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft import _core
from weft.config import Lookahead
from weft.errors import InputError
from weft.guided.state import GuidedState, HostMemory
from weft.runtime.interface import NativeTask

NO_GIVEN_TEXT = (
    "text is given as drafts, but this engine makes none of it; make it with Speculation.given(), or "
    "Speculation.given(then) before another drafter (of an executor: speculation=...)"
)


@dataclass(frozen=True)
class NgramSettings:
    """N-grams are looked up from the last `max_length` tokens of a text down to the last `min_length`; the latest
    earlier occurrence counts. For guided drafts the grammar chooses among the first `candidates` occurrences."""

    min_length: int = 1
    max_length: int = 4
    candidates: int = 8


@dataclass(frozen=True)
class Sources:
    """The sources of drafts, in this order: text given with the request, text that a grammar forces, n-grams of the
    text (None: none), and n-grams of lookahead decoding (None: none)."""

    given: bool = False
    forced: bool = False
    ngram: NgramSettings | None = None
    lookahead: Lookahead | None = None

    def __or__(self, other: Sources) -> Sources:
        return Sources(
            self.given or other.given,
            self.forced or other.forced,
            self.ngram or other.ngram,
            self.lookahead or other.lookahead,
        )

    @property
    def places(self) -> list[int]:
        """The places of the sources in that order."""
        in_order = (self.given, self.forced, self.ngram, self.lookahead)
        return [place for place, source in enumerate(in_order) if source]


@dataclass(frozen=True)
class ProposalCounters:
    """Since the proposals were made: calls, tokens proposed by each source, seconds in total and of the longest
    call.
    """

    calls: int
    tokens: dict[str, int]
    seconds: float
    max_seconds: float


class Proposals:
    """Proposes drafts for the slots of `state`, up to its `max_drafts` (K).

    `task` writes `proposed_host` int64 [K, S+1], from `pinned`: draft j of slot s in [j-1, s], and -1 after the last
    draft. The padding slot's drafts stay -1. It reads the verified tokens from the state's `verified_host`.

    With `guided`, a guided slot's grammar chooses among n-grams, and cuts n-grams and given text where it refuses a
    token. Raises `InputError` for settings that contradict each other.

    For lookahead it reads `window_host` int64 [S+1, W+1]: the tokens that the iteration predicted after each token of
    the slot's window, and the position of the last token that it began with."""

    def __init__(
        self, state: GuidedState, pinned: HostMemory, sources: Sources, *, guided: bool = True
    ) -> None:
        self.state = state
        self.proposed_host = pinned((state.max_drafts, state.num_slots + 1), torch.int64)
        self.proposed_host.fill_(-1)
        self.window_host: Tensor | None = None
        if sources.lookahead is not None:
            self.window_host = pinned((state.num_slots + 1, sources.lookahead.window + 1), torch.int64)
            self.window_host.fill_(-1)
        ngram = sources.ngram
        try:
            self._native = _core.Proposals(
                state,
                verified=state.verified_host.numpy(),
                proposed=self.proposed_host.numpy(),
                given=sources.given,
                forced=sources.forced,
                ngram=_core.NgramSettings(ngram.min_length, ngram.max_length, ngram.candidates)
                if ngram
                else None,
                lookahead=_sizes(sources.lookahead),
                window=None if self.window_host is None else self.window_host.numpy(),
            )
        except ValueError as error:
            raise InputError(str(error)) from error
        self._sources = sources
        self._names = [("given", "forced", "ngram", "lookahead")[place] for place in sources.places]
        self.set_guided(guided)

    def open(
        self,
        slot: int,
        tokens: Sequence[int],
        max_new_tokens: int = 1024,
        given: Sequence[int] = (),
        num_answered: int = 0,
        lookahead: Lookahead | None = None,
    ) -> None:
        """Give the slot a new text: the prompt, before the push of the first iteration that names the slot for it.

        `given` is the text that the request expects as its answer, from the answer's beginning; () for none. While the
        answer follows it, its next tokens are the drafts. An answer that has left the text rejoins it where its last 4
        tokens occur in it, up to 1024 tokens after the place where it left.

        For a resumed request `tokens` are its prompt and its answer so far, of which the last `num_answered` are the
        answer. `lookahead` are the request's sizes, at most those of the proposals (None: these).

        The text is used from that push on; iterations in flight keep the old one. More than `max_new_tokens` tokens
        allocate memory in a callback. Raises `ValueError` for a slot out of range, and `InputError` for given text
        without a source for it or with ids outside the vocabulary."""
        if given and not self._sources.given:
            raise InputError(NO_GIVEN_TEXT)
        size = self.state.vocab_size
        bad = next((token for token in given if not 0 <= token < size), None)
        if bad is not None:
            raise InputError(f"the given text holds token id {bad}; ids of this model are 0 to {size - 1}")
        window = self.first_window(tokens)
        self._native.open(
            slot, list(tokens), max_new_tokens, list(given), num_answered, _sizes(lookahead), window
        )

    def first_window(self, tokens: Sequence[int]) -> list[int]:
        """The window of a text's first iteration, W tokens: the text's last ones, repeated if the text is shorter.
        Empty without lookahead."""
        if self._sources.lookahead is None:
            return []
        width, count = self._sources.lookahead.window, len(tokens)
        return [tokens[(i - width) % count] if count else 0 for i in range(width)]

    def set_guided(self, guided: bool) -> None:
        """Set whether the grammar chooses and cuts n-grams and given text. Applies from the next push on; iterations in
        flight keep the old value."""
        self._native.set_guided(guided)

    def run(self, num_drafts: int) -> None:
        """Do the work of `task(num_drafts)`, on the calling thread."""
        self._native.run(num_drafts)

    def task(self, num_drafts: int) -> NativeTask:
        """The host task that reads the committed tokens and proposes up to `num_drafts` (0..K) drafts; after each
        `commit`.

        Committed tokens are read only here, so an iteration that wants no drafts runs it with 0.
        """
        return NativeTask(*self._native.task_address(num_drafts), self)

    def origins(self, slot: int, first: int, count: int) -> list[str | None]:
        """The sources of accepted drafts, for tokens `first` to `first` + `count` - 1 of those committed since `open`:
        "given", "forced", "ngram" or "lookahead", or None for a token that was no draft. Only the last 64 tokens are
        known."""
        return [
            None if place < 0 else self._names[place] for place in self._native.origins(slot, first, count)
        ]

    def counters(self) -> ProposalCounters:
        """Calls, times and proposed tokens so far; `tokens` has the names of `origins`."""
        return ProposalCounters(*self._native.counters())


def _sizes(lookahead: Lookahead | None) -> _core.LookaheadSettings | None:
    if lookahead is None:
        return None
    return _core.LookaheadSettings(lookahead.window, lookahead.ngram, lookahead.verification)
