"""The engine: schedule, launch, process.

`Engine.step` launches one batch: a decode iteration and chunks of prompts. Then it processes results: without overlap
those of the same batch, with overlap those of the previous batch.

A sequence gets slots and pages on admission. It releases them after it has ended, once no batch in flight refers to
it, or when it is preempted. A failure ends only the sequence that it concerns. A failed batch ends all its sequences. A
failed launch ends those that it concerns, and all sequences in flight.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.config import Speculation
from weft.core import FinishReason
from weft.core.forks import Home
from weft.engine.admission import Admission
from weft.engine.output import OutputProcessor
from weft.engine.runner.in_flight import InFlightBatch
from weft.engine.runner.runner import ModelRunner
from weft.engine.scheduler.scheduler import Schedule, Scheduler
from weft.engine.sequence import Sequence
from weft.engine.stats import StepRecord
from weft.errors import CapacityError, ExecutorError, InputError
from weft.runtime.scope import FailureScope

if TYPE_CHECKING:
    from weft.engine.features.flight_recorder import FlightRecorder

_log = logging.getLogger(__name__)


class _CollectionPostponed:
    """A context in which Python's garbage collector is off. A collection would stall the step, and might free device
    memory in the middle of it."""

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_enabled:
            gc.enable()


class Engine:
    """Decodes many sequences at once on one device. At most one batch is in flight, or two with overlap.

    `build_engine` makes one. An engine is not thread-safe: only one thread may step it.

    config: the resolved config.
    grammar: the grammar stream and the grammar state.
    parts: the model and the state on the device.
    graphs: the captured iterations.
    kv: the manager of KV pages.
    kv_events: the log of prefix-cache events; None if `kv_event_buffer` is 0. Any thread may call its
        `get_latest_events`.
    """

    def __init__(
        self,
        speculation: Speculation,
        scheduler: Scheduler,
        runner: ModelRunner,
        output: OutputProcessor,
        admission: Admission,
    ) -> None:
        self.scheduler, self.runner, self.output = scheduler, runner, output
        self.config, self.runtime = runner.config, runner.runtime
        self.grammar, self.parts, self.graphs = runner.grammar_stream, runner.parts, runner.graphs
        self.kv = scheduler.capacity.kv
        self.kv_events = self.kv.log
        self.num_steps = 0
        self.recorder: FlightRecorder | None = None
        self._speculation, self._admission = speculation, admission
        self._home = Home("engine", ExecutorError)
        self._scope = FailureScope()
        self._num_kept = 1 if self.config.is_overlapped(self.runtime.device.type) else 0
        self._grammar_s = 0.0
        self._num_finished = 0
        self._postponed = _CollectionPostponed()
        # The last batch, if later steps may launch it again: the number of such steps, and the state of the scheduler.
        self._last: InFlightBatch | None = None
        self._num_repeats = self._num_changes = 0
        self._record = StepRecord(0, 0.0)  # of the last step
        self._owes_step = False  # one more step is due, whose record reports that no sequence is active

    # -- state

    @property
    def running(self) -> list[Sequence]:
        """The admitted sequences that have not ended, in the order of their admission."""
        return [*self.scheduler.running]

    @property
    def waiting(self) -> list[Sequence]:
        """The sequences that wait for their guide, a slot or pages."""
        return [*self.scheduler.waiting]

    @property
    def num_waiting(self) -> int:
        """The number of sequences that wait for their guide, a slot or pages."""
        return len(self.scheduler.waiting)

    @property
    def num_compiling(self) -> int:
        """The number of sequences that wait for their guide, or for their matcher to start. Any thread may read it."""
        return len(self.scheduler.waiting.unready)

    @property
    def has_work(self) -> bool:
        """Whether a sequence has not ended, a batch is in flight, or the step that reports the last end is still
        due."""
        return self._is_busy or self.num_waiting > 0

    @property
    def can_step(self) -> bool:
        """Whether a step would make progress. It would not if every sequence waits for its guide's compilation or its
        matcher's start, and no deadline has passed."""
        waiting = self.scheduler.waiting
        if self._is_busy or len(waiting.queue):
            return True
        return waiting.can_collect or (bool(waiting.unready) and waiting.has_late)

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline of a sequence, as a time of `time.perf_counter`; None if there is none."""
        return self.scheduler.waiting.deadlines.first

    @property
    def _is_busy(self) -> bool:
        return bool(self.scheduler.running or self.output.in_flight or self._owes_step)

    def on_wake(self, wake: Callable[[], object]) -> None:
        """Set `wake`, which other threads call when a matcher has started. It must wake the thread that steps."""
        self.scheduler.waiting.starts.on_started = wake

    def set_recorder(self, recorder: FlightRecorder) -> None:
        """Let `recorder` record all later iterations. The engine must be idle."""
        self.recorder = recorder
        self.runner.set_recorder(recorder)
        self.output.recorder = recorder

    # -- sequences

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence. If the engine can never serve it, it fails at once."""
        self._home.check()
        try:
            self._admission.check(sequence)
        except (InputError, CapacityError) as error:
            sequence.fail(error)
            sequence.close()
        else:
            self.scheduler.add(sequence)

    def cancel(self, sequence: Sequence, reason: FinishReason = "cancelled") -> None:
        """End a sequence now, if it has not ended. It keeps the output that it has."""
        if not sequence.is_finished:
            self.output.finish(sequence, reason)

    # -- steps

    def step(self, launched: Callable[[], object] = lambda: None) -> StepRecord:
        """Run one step. `launched` is called after the launch and before processing, while the device is busy. It must
        not raise."""
        self._home.check()
        record = StepRecord(self.num_steps, time.perf_counter())
        self.num_steps += 1
        with self._scope, self._postponed:
            self.output.begin(self.scheduler.waiting)
            batch = self._launch_again(record) or self._launch_next(record)
            launched()
            self.output.process(batch, record, keep=self._num_kept)
            if self.scheduler.waiting.num_changes != self._num_changes:
                self._last = None  # it may refer to sequences that have ended
            if self.scheduler.released:
                released = self.scheduler.take_released()
                self.output.close(released)
                self.runner.release(released)
            if self.runner.snapshots.holds_ended and not self.output.in_flight:
                self.runner.snapshots.vacate(is_idle=not (self.scheduler.running or self.num_waiting))
        self._complete(record)
        return record

    def _launch_again(self, record: StepRecord) -> InFlightBatch | None:
        """Launch the last batch again, if nothing has changed on which the schedule depends. Returns None if another
        schedule may be due."""
        last, before = self._last, self._record
        if last is None or self.scheduler.waiting.num_changes != self._num_changes or not self._num_repeats:
            return None
        # With overlap, the batch in flight may be the last that a sequence needs.
        if self._num_kept and not self.scheduler.all_want_tokens(last.decoding):
            return None
        batch = self.runner.repeat(last)
        if batch is None:
            return None
        self._num_repeats -= 1
        record.limits, record.generation, record.active = before.limits, before.generation, len(last.decoding)
        return batch

    def _launch_next(self, record: StepRecord) -> InFlightBatch:
        """Make a schedule and launch its work."""
        schedule = self._schedule(record)
        self.output.close(schedule.released)
        batch = self.runner.launch(schedule)
        self._num_changes, self._num_repeats = self.scheduler.waiting.num_changes, 0
        self._last = None
        if self.runner.can_repeat(batch):
            self._last, self._num_repeats = batch, self.scheduler.num_repeats(schedule)
        return batch

    def _schedule(self, record: StepRecord) -> Schedule:
        """Decide what to launch. If the decision depends on results in flight, read those first."""
        schedule = self.scheduler.schedule_decoding(record, has_in_flight=bool(self.output.in_flight))
        while schedule is None or (self.output.in_flight and self.runner.waits_for_results(schedule)):
            self.output.drain(record)
            schedule = self.scheduler.schedule_decoding(record, has_in_flight=False)
        self.scheduler.schedule_prompts(schedule, record)
        # The prompts that end may need it too. The results in flight may end sequences.
        if self.output.in_flight and self.runner.waits_for_results(schedule):
            self.output.drain(record)
            self.scheduler.drop_ended(schedule)
        record.active = len(self.scheduler.running)
        record.generation = [sequence.id for sequence in schedule.decoding]
        record.context = [sequence.id for sequence, _ in schedule.reading]
        record.context_tokens = sum(count for _, count in schedule.reading)
        return schedule

    def _complete(self, record: StepRecord) -> None:
        """Fill in the step's record after processing."""
        scheduler, num_finished = self.scheduler, self.output.num_finished
        record.kv = self.kv.usage()
        if self.kv_events is not None:
            self.kv_events.flush()
        grammar_s = self.grammar.state.seconds
        record.grammar_s, self._grammar_s = record.grammar_s + grammar_s - self._grammar_s, grammar_s
        before, self._record = self._record, record
        if record.generation is before.generation and scheduler.waiting.num_changes == self._num_changes:
            # The step has repeated the last one, and no sequence has ended.
            record.queued, record.compiling = before.queued, before.compiling
            record.total_s = time.perf_counter() - record.started
            return
        if record.active > len(record.generation):  # some sequences still read their prompts
            record.prompt_tokens_read = scheduler.prompt_tokens_read()
        record.completed, self._num_finished = num_finished - self._num_finished, num_finished
        record.active, record.queued = len(scheduler.running), self.num_waiting
        if record.completed or record.paused:  # also count the sequences that left during the step
            running = {sequence.id for sequence in self.running}
            record.active = len({*record.context, *record.generation} | running)
        record.compiling = self.num_compiling
        record.total_s = time.perf_counter() - record.started
        self._owes_step = bool(record.active)

    def warm_up(self) -> None:
        """Capture the graphs of all batch sizes and draft counts in use, with and without guides and prompts.

        These graphs serve any mix of requests, except requests with logits processors. On CUDA, call this on the
        thread that steps, because libraries keep handles per thread.
        """
        began = time.perf_counter()
        with self._scope, _CollectionPostponed():
            self.output.drain(StepRecord(self.num_steps, began))
            self._last = None  # captures send other inputs
            self.runner.warm_up(self._speculation)
        _log.info("warm: %d graphs in %.1f s", len(self.graphs.plans), time.perf_counter() - began)
        # Skip the grammar's time so far. Otherwise the first step's record would include the warm-up.
        self._grammar_s = self.grammar.state.seconds

    def close(self) -> None:
        """Cancel all sequences, wait for the work in flight, and close graphs, matcher starts, the event log and the
        recorder. Matchers go with the guided state."""
        for sequence in [*self.waiting, *self.running]:
            self.cancel(sequence)
        self.scheduler.waiting.starts.close()
        try:
            with self._scope:
                self.runner.stream.synchronize()
                self.output.drain(StepRecord(self.num_steps, time.perf_counter()))
                self.graphs.close()
                self.grammar.close()
        finally:
            if self.kv_events is not None:
                self.kv_events.close()
        if self.recorder is not None:
            self.recorder.close()
