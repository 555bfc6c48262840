"""Output processing: what batches committed goes to requests, and what failed ends those that were in it."""

from __future__ import annotations

import time
from collections import abc, deque
from collections.abc import Callable
from typing import Protocol

from weft.core import FinishReason
from weft.engine.device.results import StepResults
from weft.engine.features.recording import Recorder
from weft.engine.output.commit import DraftedBy, commit, commit_plainly
from weft.engine.output.finish import Finisher
from weft.engine.runner.in_flight import InFlightBatch, Snapshots
from weft.engine.runner.runner import DraftGuidance
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.scheduling.waiting import Waiting
from weft.engine.sequence import Sequence, Stage
from weft.engine.stats import StepRecord
from weft.guided.state import GuidedState
from weft.runtime.interface import Runtime


class Launched(Protocol):
    """What the processor tells the runner."""

    guidance: DraftGuidance
    snapshots: Snapshots


CommitSearch = Callable[[Sequence, StepResults], FinishReason | None]


class OutputProcessor:
    """Reads batches in the order of their launches; at most two are in flight. `commit_search` commits what a search
    found; `drafted_by` names who drafted."""

    def __init__(
        self,
        runtime: Runtime,
        scheduler: Scheduler,
        finisher: Finisher,
        runner: Launched,
        state: GuidedState,
        end_tokens: frozenset[int],
    ) -> None:
        self.in_flight: deque[InFlightBatch] = deque()
        self.commit_search: CommitSearch | None = None
        self.drafted_by: DraftedBy = _unnamed
        self.finisher = finisher
        self._runtime, self._scheduler = runtime, scheduler
        self._runner, self._state, self._end_tokens = runner, state, end_tokens
        self._last_read = 0.0

    def set_recorder(self, recorder: Recorder) -> None:
        """Let `recorder` hear of requests that fail."""
        self.finisher.recorder = recorder

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a request, wherever it is."""
        self.finisher.finish(sequence, reason)

    def begin(self, waiting: Waiting) -> None:
        """Before a step: end requests whose time is up or whose guide can't be had, and hear of what failed in flight
        before anything else is launched, which would be blamed for it."""
        if waiting.deadlines.entries or waiting.preempted:
            for sequence in waiting.late():
                self.finisher.finish(sequence, "timeout")
        if waiting.unready or waiting.compiled or waiting.starts.orphans:
            for sequence, error in waiting.collect():
                self.finisher.finish(sequence, "error", error)
        try:
            self._runtime.check()
        except Exception as error:
            self.finisher.fail(self._sequences_in_flight(), error)

    def process(self, batch: InFlightBatch, record: StepRecord, keep: int) -> None:
        """Take a batch that was launched, and read those in flight but for `keep`."""
        for sequence, error in batch.unopened:
            self.finisher.fail([sequence], error)
        for sequences, error in batch.failures:
            self._fail_launch(sequences, error, record)
        if batch.moves is not None:
            self._check_moves(batch)
        if batch.is_launched:
            self.in_flight.append(batch)
        self.drain(record, keep if batch.is_launched else 0)

    def drain(self, record: StepRecord, keep: int = 0) -> None:
        """Read what is in flight, but for the last `keep` batches."""
        while len(self.in_flight) > keep:
            self._read(record)

    # -- a batch

    def _read(self, record: StepRecord) -> None:
        """Wait for the oldest batch, and hand out what it committed."""
        batch = self.in_flight.popleft()
        assert batch.results is not None
        waiting_since = time.perf_counter()
        try:
            results = batch.results.wait()
            self._runtime.check()
        except Exception as error:
            self._fail_batch(batch, error)
            return
        if batch.moves is not None:
            self._check_moves(batch)
        now = time.perf_counter()
        self._state.commit_owed(batch.epoch)
        record.model_s += now - waiting_since
        seconds, self._last_read = now - max(batch.began, self._last_read), now
        self._observe(batch, results, seconds)
        for sequence in (*batch.first, *batch.reading):
            failure = batch.prompts[sequence].error
            if failure is not None and sequence.stage is not Stage.FINISHED:
                self.finisher.finish(sequence, "error", failure)
        for sequence in batch.first:
            if sequence.stage is not Stage.FINISHED:
                if not sequence.resumed_at:
                    sequence.output.stats.reused_tokens = batch.prompts[sequence].first
                self._commit(sequence, results, record)
        for sequence in batch.decoding:
            if sequence.stage is not Stage.FINISHED and not sequence.must_reread:
                self._commit_iteration(sequence, results, record)
        self._retire(batch)

    def _observe(self, batch: InFlightBatch, results: StepResults, seconds: float) -> None:
        plan = batch.plan
        if plan is not None and plan.guides and plan.num_drafts:
            guided = [r for r in batch.decoding if r.is_guided and r.stage is not Stage.FINISHED]
            tokens = sum(results.verified[sequence.slot][0] + 1 for sequence in guided)
            self._runner.guidance.observe((plan.batch, plan.num_drafts), batch.masks_drafts, seconds, tokens)

    def _commit_iteration(self, sequence: Sequence, results: StepResults, record: StepRecord) -> None:
        stats = sequence.output.stats
        stats.iterations += 1
        iterations, tokens = stats.drafted_iterations, stats.drafted_tokens
        proposed, accepted = stats.proposed_drafts, stats.accepted_drafts
        self._commit(sequence, results, record)
        record.speculating += stats.drafted_iterations - iterations
        record.speculated_tokens += stats.drafted_tokens - tokens
        record.proposed_drafts += stats.proposed_drafts - proposed
        record.accepted_drafts += stats.accepted_drafts - accepted

    def _commit(self, sequence: Sequence, results: StepResults, record: StepRecord) -> None:
        """Append what the iteration committed to the request, and end it where it ends."""
        output = sequence.output
        before = len(output.token_ids)
        try:
            reason = self._append(sequence, results)
        except Exception as error:  # whatever it is, the others' tokens are committed on the device
            self.finisher.finish(sequence, "error", error)
            return
        num_tokens = len(output.token_ids)
        has_more = num_tokens > before or sequence.search is not None
        record.generated_tokens += num_tokens - before if sequence.search is None else 1
        if has_more:
            output.stats.note_tokens(self._last_read, record.number)
        if num_tokens >= sequence.next_cache_at and not sequence.must_reread:
            self._scheduler.capacity.cache(sequence)
        if reason is not None:
            self.finisher.finish(sequence, reason)
            return
        if sequence.must_reread:
            self._scheduler.reread(sequence)
        if sequence.is_streaming:
            sequence.report()

    def _append(self, sequence: Sequence, results: StepResults) -> FinishReason | None:
        """Append the tokens to the answer; why it ends, if it does."""
        if sequence.search is not None:
            assert self.commit_search is not None
            return self.commit_search(sequence, results)
        grammar = self._state if sequence.is_guided else None
        if sequence.is_plain and commit_plainly(
            sequence, results, self._end_tokens, grammar, self.drafted_by
        ):
            return None
        return commit(sequence, results, self._end_tokens, grammar, self.drafted_by)

    def _retire(self, batch: InFlightBatch) -> None:
        left = batch.end()
        if left:
            self._scheduler.retire(left)

    # -- failures

    def _sequences_in_flight(self) -> list[Sequence]:
        """A request in two batches stands there twice."""
        return [sequence for batch in self.in_flight for sequence in batch.sequences]

    def _fail_batch(self, batch: InFlightBatch, error: BaseException) -> None:
        """What was launched together fails together, and with it what later work can't go on without."""
        self.finisher.fail(batch.sequences, error)
        try:
            self._runtime.synchronize()
        except Exception as later:
            self.finisher.fail(self._sequences_in_flight(), later)
        self._check_moves(batch)
        self._runner.snapshots.drop_pending()
        self._state.forget_owed(batch.epoch)
        self._retire(batch)

    def _check_moves(self, batch: InFlightBatch) -> None:
        """Where pages could not be moved, what is held and cached is not what it is taken for."""
        error = batch.moves.error if batch.moves is not None else None
        if error is not None:
            self.finisher.fail([*self._scheduler.running], error)
            self._scheduler.capacity.kv.forget()

    def _fail_launch(
        self, sequences: abc.Sequence[Sequence], error: BaseException, record: StepRecord
    ) -> None:
        """What was to be launched fails; and what is in flight, since a launch also raises what failed there."""
        self.finisher.fail(self._sequences_in_flight(), error)
        self.finisher.fail(sequences, error)
        self.drain(record)
        self._runner.snapshots.drop_pending()


def _unnamed(sequence: Sequence, count: int) -> abc.Sequence[str]:
    """What drafted is a drafter."""
    return ["drafter"] * count
