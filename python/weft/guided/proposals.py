"""Drafts that the host proposes, by slot: text given with the request, text that the grammar forces, what followed the
same tokens before, and what the model made beside the text.

They are made in C++ (`csrc/drafting/proposals.h`); here they get their host memory, and become host tasks. A task
runs on the grammar's stream after the `commit` of an iteration, for the slots of its snapshot. Given text comes
first, forced text where there is none; n-grams go on after either.

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
    """How n-grams are looked up: the last `max_length` tokens of a text first, down to the last `min_length`; the
    latest place where they occurred before counts. Where drafts are guided the grammar chooses among the first
    `candidates` places.
    """

    min_length: int = 1
    max_length: int = 4
    candidates: int = 8


@dataclass(frozen=True)
class Sources:
    """What proposes, in this order: text given with the request, text that a grammar forces, n-grams (None: none), and
    those of lookahead decoding (None: none)."""

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
        """Which places of the order they take."""
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

    `proposed_host` int64 [K, S+1], from `pinned`, is written by `task`: draft j of slot s in [j-1, s], -1 where
    there is none, and then after it, too. The padding slot's stay -1. What was verified is read from the state's
    `verified_host`.

    `sources` say what proposes. With `guided`, what n-grams propose for a guided slot is chosen and cut by its grammar,
    and given text is cut. Raises `InputError` for settings that contradict each other.

    `window_host` int64 [S+1, W+1], for lookahead, is read: what the iteration found to follow the tokens of each slot's
    window, and the position of the last token that it began with.
    """

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
                ngram=_core.NgramSettings(ngram.min_length, ngram.max_length, ngram.candidates) if ngram else None,
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
        answer is in it, what comes next in it are the drafts. An answer that has left it is back where its last 4
        tokens stand in it, up to 1024 tokens after the place where it left.

        A request that goes on after a pause has its prompt and its answer so far as `tokens`, of which the last
        `num_answered` are the answer. `lookahead` are its own sizes, none beyond those of the proposals (None: these).

        The text is in use from that push on; iterations in flight keep the old one. Tokens beyond `max_new_tokens`
        cost memory to be allocated while they come. Raises `ValueError` for a slot that is none, and `InputError` for
        given text without a source for it, or with ids that are no tokens.
        """
        if given and not self._sources.given:
            raise InputError(NO_GIVEN_TEXT)
        size = self.state.vocab_size
        bad = next((token for token in given if not 0 <= token < size), None)
        if bad is not None:
            raise InputError(f"the given text holds token id {bad}; ids of this model are 0 to {size - 1}")
        window = self.first_window(tokens)
        own = _sizes(lookahead)
        self._native.open(slot, list(tokens), max_new_tokens, list(given), num_answered, own, window)

    def first_window(self, tokens: Sequence[int]) -> list[int]:
        """The window of a text's first iteration, W tokens: the text's last ones, from its beginning again where it is
        shorter. Empty without lookahead."""
        if self._sources.lookahead is None:
            return []
        width, count = self._sources.lookahead.window, len(tokens)
        return [tokens[(i - width) % count] if count else 0 for i in range(width)]

    def set_guided(self, guided: bool) -> None:
        """Whether the grammar chooses and cuts what n-grams and given text propose: from the next push on,
        so that iterations in flight keep what they had."""
        self._native.set_guided(guided)

    def run(self, num_drafts: int) -> None:
        """What the task does."""
        self._native.run(num_drafts)

    def task(self, num_drafts: int) -> NativeTask:
        """Reads what was committed, and proposes up to `num_drafts` (0..K) drafts; a host task after each `commit`.

        What is committed is read nowhere else, so an iteration that wants no drafts has it, too, with 0.
        """
        return NativeTask(*self._native.task_address(num_drafts), self)

    def origins(self, slot: int, first: int, count: int) -> list[str | None]:
        """Who proposed what was accepted: of the tokens that were committed since `open`, for tokens `first` to
        `first` + `count` - 1, "given", "forced", "ngram" or "lookahead"; None where nobody did. The last 64 can be
        asked for."""
        return [
            None if place < 0 else self._names[place] for place in self._native.origins(slot, first, count)
        ]

    def counters(self) -> ProposalCounters:
        """What it has cost and brought so far; the names of `tokens` are those of `origins`."""
        return ProposalCounters(*self._native.counters())


def _sizes(lookahead: Lookahead | None) -> _core.LookaheadSettings | None:
    if lookahead is None:
        return None
    return _core.LookaheadSettings(lookahead.window, lookahead.ngram, lookahead.verification)
