"""Work in flight: launched batches that the host has not read yet, their prompts, and the grammar's snapshots."""

from __future__ import annotations

import time
from collections import abc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from weft.engine.device.results import StepResults
from weft.engine.device.sampling import SlotSampling
from weft.engine.kv.pool import Move
from weft.engine.runner.step import Plan
from weft.engine.sequence import Sequence
from weft.grammar.base import Matcher
from weft.guided.grammar_stream import GrammarStream
from weft.runtime.interface import Graph, Runtime, Stream


@dataclass(eq=False)
class PromptInputs:
    """The inputs of a sequence's prompt, for one of its admissions.

    They are a copy of the sequence's data, because the device work may run late. By then the sequence may have been
    preempted and admitted again, with other slots and a longer text.

    slots: the sequence's slots. The prompt is read into the first.
    tokens: int64, the text so far. Its first `first` tokens come from the cache. Those before `position` have been
        read, or the iterations that read them are launched.
    pages, windowed: the KV pages, and the windowed ones.
    window: the first lookahead window.
    context: pinned memory for the outputs of the prompt's positions, by name.
    request_id, processor: as in `SlotState`.
    error: the exception of a device function for this prompt. Later work then skips the prompt.
    """

    slots: abc.Sequence[int]
    tokens: NDArray[np.int64]
    pages: abc.Sequence[int]
    sampling: SlotSampling
    first: int = 0
    window: abc.Sequence[int] = ()
    context: Mapping[str, Tensor] = field(default_factory=dict)
    windowed: abc.Sequence[int] = ()
    request_id: int = 0
    processor: int = 0
    position: int = field(init=False)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.position = self.first

    @property
    def slot(self) -> int:
        """The slot into which the prompt is read."""
        return self.slots[0]

    @property
    def length(self) -> int:
        """The number of tokens in the text."""
        return len(self.tokens)


@dataclass(eq=False)
class PageMoves:
    """The page copies of a step, which are launched together with its moves of states. After an `error` of any of them,
    the host's view of what is cached is wrong."""

    moves: abc.Sequence[Move]
    error: BaseException | None = None


@dataclass(slots=True)
class InFlightBatch:
    """The launched work of one step: its sequences, their results, and failures of the launch.

    plan: the kind of the iteration with sampling rows; None without one.
    graph: its graph; None if it is not one captured graph.
    decoding: the sequences that decode, and `slots`, the first slot of each.
    first: the sequences whose prompt ends, so that they get their first token.
    reading: the sequences that read a part of their prompt but not its end.
    prompts: the inputs for the prompts of `first` and `reading`.
    unopened: the sequences whose slots could not be filled, each with its own error.
    failures: the sequences that could not be launched, with the error. Earlier work in flight may have caused it.
    results: the copies of the results; None before the launch and after the host has read them.
    began: the time of the launch (`time.perf_counter`).
    is_launched: whether any work was launched.
    epoch: the epoch of the last snapshot at the end of the launch: the batch's own, if it pushed one.
    masks_drafts: whether the grammar masks the drafts.
    num_context: the number of prompt tokens that are read.
    moves: the page moves that were launched first.
    """

    plan: Plan | None = None
    graph: Graph | None = None
    decoding: list[Sequence] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    first: list[Sequence] = field(default_factory=list)
    reading: list[Sequence] = field(default_factory=list)
    prompts: dict[Sequence, PromptInputs] = field(default_factory=dict)
    unopened: list[tuple[Sequence, BaseException]] = field(default_factory=list)
    failures: list[tuple[list[Sequence], BaseException]] = field(default_factory=list)
    results: StepResults | None = None
    began: float = field(default_factory=time.perf_counter)
    is_launched: bool = False
    epoch: int = 0
    masks_drafts: bool = False
    num_context: int = 0
    moves: PageMoves | None = None

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.decoding
        yield from self.first
        yield from self.reading

    @property
    def sequences(self) -> list[Sequence]:
        """All sequences of the batch, each once."""
        return [*self]

    def launch(self, decoding: list[Sequence]) -> None:
        """Note that the iterations are launched, and add the sequences that decode. Each of them gets at least one
        token."""
        self.decoding, self.slots = decoding, [sequence.slot for sequence in decoding]
        self.is_launched = True
        for sequence in decoding:
            sequence.num_in_flight += 1
            sequence.num_promised += 1

    def decode_again(self) -> None:
        """Note that the batch's iteration is launched again, after the batch has ended."""
        self.began = time.perf_counter()
        for sequence in self.decoding:
            sequence.num_in_flight += 1
            sequence.num_promised += 1

    def read(self, sequence: Sequence, prompt: PromptInputs, is_last: bool) -> None:
        """Add a launched part of a prompt. The last part gives the sequence its first token."""
        (self.first if is_last else self.reading).append(sequence)
        self.prompts[sequence] = prompt
        sequence.num_in_flight += 1
        sequence.num_promised += is_last

    def end(self) -> list[Sequence]:
        """Note that the host has read the batch. Returns its sequences that have ended and to which no other batch in
        flight refers. Their slots and pages can be released."""
        self.results = None
        left: list[Sequence] = []
        for sequences, num_promised in ((self.decoding, 1), (self.first, 1), (self.reading, 0)):
            for sequence in sequences:
                sequence.num_promised -= num_promised
                sequence.num_in_flight -= 1
                if sequence.has_left and not sequence.num_in_flight:
                    left.append(sequence)
        return left


class Snapshots:
    """Pushes snapshots to the grammar stream, one for each iteration with guides or proposals.

    A snapshot lists the slots of its iteration, and matchers to attach to or detach from slots. Matchers of sequences
    that released their slots stay there until the next snapshot, or until `vacate`.

    epoch: the epoch of the last snapshot.
    holds_ended: whether slots may still have such matchers.
    """

    def __init__(self, runtime: Runtime, stream: Stream, grammar_stream: GrammarStream) -> None:
        self.epoch = 0
        self.holds_ended = False
        self._runtime, self._stream = runtime, stream
        self._grammar_stream, self._state = grammar_stream, grammar_stream.state
        self._changes: dict[int, Matcher | None] = {}
        self._holds_large = False

    def change(self, matchers: Mapping[int, Matcher | None]) -> None:
        """Attach matchers to slots with the next snapshot. None detaches a slot's matcher."""
        self._changes |= matchers

    def release(self, sequence: Sequence, slots: abc.Sequence[int]) -> None:
        """Detach the matchers of `slots`, which a sequence released, with the next snapshot. The sequence may have
        other slots by now."""
        if sequence.is_guided:
            self._state.end_ahead()  # the next iteration may have no guides, so that none of its operations ends it
            self._changes |= dict.fromkeys(slots)
            self.holds_ended = True
            self._holds_large |= sequence.starts_ahead

    def push(self, slots: abc.Sequence[int]) -> None:
        """Push the snapshot of the next iteration, which has `slots`."""
        changes, self._changes = self._changes, {}
        self.epoch = self._grammar_stream.push(slots, changes)

    def vacate(self, is_idle: bool) -> None:
        """Detach the matchers of released slots before the next snapshot does. Call it with nothing in flight.

        It waits for the device, so it acts only for WebAssembly programs, which are large, or if nothing else runs or
        waits (`is_idle`).
        """
        if not (self._holds_large or (self.holds_ended and is_idle)):
            return
        try:
            self._stream.synchronize()
            self._grammar_stream.synchronize()
        except Exception:  # no sequence is in flight that the error could concern
            return
        if self._state.num_pending:
            return
        self._state.vacate([slot for slot, matcher in self._changes.items() if matcher is None])
        self.holds_ended = self._holds_large = False

    def drop_pending(self) -> None:
        """Remove the snapshots of failed launches, or the next iteration would take them. First wait for the iterations
        in flight, so that they take their own snapshots."""
        if not self._state.num_pending:
            return
        try:
            self._runtime.synchronize()
        finally:
            while self._state.num_pending:
                self._state.fetch()
