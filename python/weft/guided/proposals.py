"""Drafts that the host proposes, by slot: text that the grammar forces, and what followed the same tokens before.

They are made in C++ (`csrc/proposals.h`); here they get their host memory, and become host tasks. A task runs on the
grammar's stream behind the `commit` of an iteration, for the slots of its snapshot. Forced text comes first, n-grams
go on behind it.

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
    """What proposes: text that a grammar forces first, n-grams (None: none) behind it."""

    forced: bool = False
    ngram: NgramSettings | None = None

    def __or__(self, other: Sources) -> Sources:
        return Sources(self.forced or other.forced, self.ngram or other.ngram)


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
    there is none, and then behind it, too. The padding slot's stay -1. What was verified is read from the state's
    `verified_host`.

    `forced` and `ngram` (None: none) are the sources. With `guided`, what n-grams propose for a guided slot is chosen
    and cut by its grammar. Raises `InputError` for settings that make no sense.
    """

    def __init__(
        self,
        state: GuidedState,
        pinned: HostMemory,
        *,
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
                forced,
                settings,
            )
        except ValueError as error:
            raise InputError(str(error)) from error
        self.set_guided(guided)

    def open(self, slot: int, tokens: Sequence[int], max_new_tokens: int = 1024) -> None:
        """Give the slot a new text: the prompt, before the push of the first iteration that names the slot for it.

        The text is in use from that push on; iterations in flight keep the old one. Tokens beyond `max_new_tokens`
        cost memory to be allocated while they come. Raises `ValueError` for a slot that is none.
        """
        self._native.open(slot, list(tokens), max_new_tokens)

    def set_guided(self, guided: bool) -> None:
        """Whether the grammar chooses and cuts what n-grams propose; at any time, from the next task on."""
        self._native.set_guided(guided)

    def run(self, num_drafts: int) -> None:
        """What the task does."""
        self._native.run(num_drafts)

    def task(self, num_drafts: int) -> NativeTask:
        """Reads what was committed, and proposes up to `num_drafts` (0..K) drafts; a host task behind each `commit`.

        What is committed is read nowhere else, so an iteration that wants no drafts has it, too, with 0.
        """
        name, function, data = self._native.task(num_drafts)
        return NativeTask(name, function, data, self)

    def counters(self) -> ProposalCounters:
        """What it has cost and brought so far; the names of `tokens` are "forced" and "ngram"."""
        return ProposalCounters(*self._native.counters())
