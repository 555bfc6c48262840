"""Drafts that the host proposes for slots. They come from text given with the request, text that the grammar forces,
n-grams of the text, and n-grams of lookahead decoding.

C++ makes them (`csrc/drafting/proposals.h`); this file gives it host memory and wraps it in host tasks. A task runs on
the grammar stream after an iteration's `commit`, for the slots of the snapshot. Given text comes first, or forced text
if there is none. N-grams continue either.

S slots and one more for padding, K drafts, W tokens of a lookahead window.
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
    """The settings of n-gram lookup.

    The lookup searches the text for its own last `max_length` tokens, then for shorter suffixes down to `min_length`.
    It uses the latest earlier occurrence of the longest one. For guided drafts, the grammar chooses among `candidates`
    occurrences: those of longer suffixes come first, then later ones.
    """

    min_length: int = 1
    max_length: int = 4
    candidates: int = 8


@dataclass(frozen=True)
class Sources:
    """The sources of drafts in use, in order of precedence.

    given: text given with the request.
    forced: text that a grammar forces.
    ngram: n-grams of the text; None if not used.
    lookahead: n-grams of lookahead decoding; None if not used.
    """

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
        """The indices of the sources in use, among the four in order."""
        in_order = (self.given, self.forced, self.ngram, self.lookahead)
        return [place for place, source in enumerate(in_order) if source]


@dataclass(frozen=True)
class ProposalCounters:
    """Counters since the proposals object was made.

    calls: the number of calls.
    tokens: the number of tokens proposed, by source.
    seconds, max_seconds: the time of all calls, and of the longest one.
    """

    calls: int
    tokens: dict[str, int]
    seconds: float
    max_seconds: float


class Proposals:
    """Proposes drafts for the slots of `state`, up to its `max_drafts` (K).

    The host task reads the verified tokens from the state's `verified_host`. With `guided`, a guided slot's grammar
    chooses among n-grams, and cuts n-grams and given text at the first token that it refuses. Raises `InputError` for
    settings that contradict each other.

    proposed_host: int64 [K, S+1], allocated by `pinned`. The task writes draft j of slot s to [j-1, s], and -1 after
        the last draft. The padding slot's drafts stay -1.
    native: the native object.
    window_host: int64 [S+1, W+1], for lookahead; None without. The task reads from it the tokens that the iteration
        predicted after each token of the slot's window, and the position of the first token that the iteration read.
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
            self.native = _core.Proposals(
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
        """Give the slot a new text. Call it before the push of the new request's first iteration. The text is used from
        that push on; iterations in flight keep the old one.

        tokens: the prompt. For a resumed request, the prompt and the answer so far.
        max_new_tokens: number of new tokens for which memory is allocated now. More tokens allocate in a host callback.
        given: the text that the request expects as its answer, from the answer's beginning; () for none. While the
            answer follows it, its next tokens are the drafts. After leaving the text, the answer rejoins it where its
            last 4 tokens occur in it, up to 1024 tokens after the point of departure.
        num_answered: how many of `tokens`, at the end, are the answer.
        lookahead: the request's lookahead sizes, at most those of the proposals (None: these).

        Raises `ValueError` for a slot out of range. Raises `InputError` for given text if there is no source for it, or
        if it has ids outside the vocabulary.
        """
        if given and not self._sources.given:
            raise InputError(NO_GIVEN_TEXT)
        size = self.state.vocab_size
        bad = next((token for token in given if not 0 <= token < size), None)
        if bad is not None:
            raise InputError(f"the given text holds token id {bad}; ids of this model are 0 to {size - 1}")
        window = self.first_window(tokens)
        self.native.open(
            slot, list(tokens), max_new_tokens, list(given), num_answered, _sizes(lookahead), window
        )

    def first_window(self, tokens: Sequence[int]) -> list[int]:
        """The lookahead window of a text's first iteration: the text's last W tokens, repeated if the text is shorter.
        Empty without lookahead."""
        if self._sources.lookahead is None:
            return []
        width, count = self._sources.lookahead.window, len(tokens)
        return [tokens[(i - width) % count] if count else 0 for i in range(width)]

    def set_guided(self, guided: bool) -> None:
        """Set whether the grammar chooses among n-grams, and cuts n-grams and given text. It applies from the next push
        on; iterations in flight keep the old value."""
        self.native.set_guided(guided)

    def run(self, num_drafts: int) -> None:
        """Do the work of `task(num_drafts)` on the calling thread."""
        self.native.run(num_drafts)

    def task(self, num_drafts: int) -> NativeTask:
        """The host task that reads the committed tokens and proposes up to `num_drafts` (0..K) drafts. It runs after
        each `commit`.

        Only this task reads committed tokens, so an iteration that wants no drafts must run it too, with 0.
        """
        return NativeTask(*self.native.task_address(num_drafts), self)

    def origins(self, slot: int, first: int, count: int) -> list[str | None]:
        """The sources of tokens `first` to `first` + `count` - 1, counted from `open`. A source is "given", "forced",
        "ngram" or "lookahead", or None for a token that the host did not propose. Only the last 256 tokens are kept,
        and the drafts of iterations in flight count among them."""
        return [
            None if place < 0 else self._names[place] for place in self.native.origins(slot, first, count)
        ]

    def counters(self) -> ProposalCounters:
        """The counters so far. The keys of `tokens` are the names that `origins` returns."""
        return ProposalCounters(*self.native.counters())


def _sizes(lookahead: Lookahead | None) -> _core.LookaheadSettings | None:
    if lookahead is None:
        return None
    return _core.LookaheadSettings(lookahead.window, lookahead.ngram, lookahead.verification)
