"""Drafts that the host proposes, by slot: text given with the request, text that the grammar forces, and what followed
the same tokens before.

They are made in C++ (`csrc/drafting/proposals.h`); here they get their host memory, and become host tasks. A task
runs on the grammar's stream after the `commit` of an iteration, for the slots of its snapshot. Given text comes
first, forced text where there is none; n-grams go on after either.

S slots and one more for padding, K drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from weft import _core
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
    """What proposes, in this order: text given with the request, text that a grammar forces, n-grams (None: none)."""

    given: bool = False
    forced: bool = False
    ngram: NgramSettings | None = None

    def __or__(self, other: Sources) -> Sources:
        return Sources(self.given or other.given, self.forced or other.forced, self.ngram or other.ngram)

    @property
    def places(self) -> list[int]:
        """Which places of the order they take."""
        return [place for place, source in enumerate((self.given, self.forced, self.ngram)) if source]


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

    `given`, `forced` and `ngram` (None: none) are the sources. With `guided`, what n-grams propose for a guided slot is
    chosen and cut by its grammar, and given text is cut. Raises `InputError` for settings that contradict each other.
    """

    def __init__(
        self,
        state: GuidedState,
        pinned: HostMemory,
        *,
        given: bool = False,
        forced: bool = False,
        ngram: NgramSettings | None = None,
        guided: bool = True,
    ) -> None:
        self.state = state
        self.proposed_host = pinned((state.max_drafts, state.num_slots + 1), torch.int64)
        self.proposed_host.fill_(-1)
        settings = None
        if ngram is not None:
            settings = _core.NgramSettings(ngram.min_length, ngram.max_length, ngram.candidates)
        try:
            self._native = _core.Proposals(
                state.native,
                state.verified_host.data_ptr(),
                self.proposed_host.data_ptr(),
                given,
                forced,
                settings,
            )
        except ValueError as error:
            raise InputError(str(error)) from error
        self._takes_given = given
        self._names = [
            name for name, is_there in (("given", given), ("forced", forced), ("ngram", ngram)) if is_there
        ]
        self.set_guided(guided)

    def open(
        self,
        slot: int,
        tokens: Sequence[int],
        max_new_tokens: int = 1024,
        given: Sequence[int] = (),
        num_answered: int = 0,
    ) -> None:
        """Give the slot a new text: the prompt, before the push of the first iteration that names the slot for it.

        `given` is the text that the request expects as its answer, from the answer's beginning; () for none. While the
        answer is in it, what comes next in it are the drafts. An answer that has left it is back where its last 4
        tokens stand in it, up to 1024 tokens after the place where it left.

        A request that goes on after a pause has its prompt and its answer so far as `tokens`, of which the last
        `num_answered` are the answer.

        The text is in use from that push on; iterations in flight keep the old one. Tokens beyond `max_new_tokens`
        cost memory to be allocated while they come. Raises `ValueError` for a slot that is none, and `InputError` for
        given text without a source for it, or with ids that are no tokens.
        """
        if given and not self._takes_given:
            raise InputError(NO_GIVEN_TEXT)
        size = self.state.vocab_size
        bad = next((token for token in given if not 0 <= token < size), None)
        if bad is not None:
            raise InputError(f"the given text holds token id {bad}; ids of this model are 0 to {size - 1}")
        self._native.open(slot, list(tokens), max_new_tokens, list(given), num_answered)

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
        name, function, data = self._native.task(num_drafts)
        return NativeTask(name, function, data, self)

    def origins(self, slot: int, first: int, count: int) -> list[str | None]:
        """Who proposed what was accepted: of the tokens that were committed since `open`, for tokens `first` to
        `first` + `count` - 1, "given", "forced" or "ngram"; None where nobody did. The last 64 can be asked for."""
        return [
            None if place < 0 else self._names[place] for place in self._native.origins(slot, first, count)
        ]

    def counters(self) -> ProposalCounters:
        """What it has cost and brought so far; the names of `tokens` are "given", "forced" and "ngram"."""
        return ProposalCounters(*self._native.counters())
