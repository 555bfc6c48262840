"""The engine: schedule, launch, process.

`Engine.step` is one step. It launches an iteration for the requests that decode, and parts of prompts; then it
processes what was launched: in this step, or with overlap in the step before. What a request holds (slots, pages,
matcher) is taken on admission and given back when it finishes, however it finishes, once no batch in flight names it.
What fails is the request that failed; where a whole iteration fails, the requests that were in it.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable

from weft.config import ResolvedConfig, Speculation
from weft.core import FinishReason
from weft.core.forks import Home
from weft.engine.admission import Admission
from weft.engine.device.state import DecodeParts
from weft.engine.features.recording import Recorder
from weft.engine.kv.cache import KvManager
from weft.engine.kv.events import KvEventLog
from weft.engine.output.processor import OutputProcessor
from weft.engine.runner.graphs import StepGraphs
from weft.engine.runner.runner import Decoder, ModelRunner
from weft.engine.scheduling.schedule import Schedule
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.sequence import Sequence
from weft.engine.stats import StepRecord
from weft.errors import CapacityError, ExecutorError, InputError
from weft.guided.grammar_stream import GrammarStream
from weft.runtime.interface import Runtime
from weft.runtime.scope import FailureScope

_log = logging.getLogger(__name__)


class _CollectionPostponed:
    """Collect no garbage inside: what a collection frees may be the device's, and it takes long."""

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_enabled:
            gc.enable()


class Engine:
    """Decodes many requests at once on one device, one iteration in flight, or two with overlap. `build_engine` makes
    one. Not thread-safe: one thread steps it."""

    def __init__(
        self,
        decoder: Decoder,
        speculation: Speculation,
        scheduler: Scheduler,
        runner: ModelRunner,
        output: OutputProcessor,
        admission: Admission,
    ) -> None:
        self.scheduler, self.runner, self.output = scheduler, runner, output
        self.num_steps = 0
        self.recorder: Recorder | None = None
        self._decoder, self._speculation, self._admission = decoder, speculation, admission
        self._kv_events = scheduler.capacity.kv.events
        self._home = Home("engine", ExecutorError)
        self._scope = FailureScope()
        overlap = decoder.config.overlap
        is_overlapped = decoder.runtime.device.type == "cuda" if overlap == "auto" else overlap
        self._num_kept = 1 if is_overlapped else 0
        self._grammar_s = 0.0
        self._num_finished = 0
        self._owes_step = False

    # -- what there is

    @property
    def config(self) -> ResolvedConfig:
        """The resolved config."""
        return self._decoder.config

    @property
    def runtime(self) -> Runtime:
        """The device's runtime."""
        return self._decoder.runtime

    @property
    def grammar(self) -> GrammarStream:
        """The grammar's stream and state."""
        return self._decoder.grammar

    @property
    def parts(self) -> DecodeParts:
        """What it decodes with."""
        return self._decoder.parts

    @property
    def graphs(self) -> StepGraphs:
        """The graphs of its iterations."""
        return self._decoder.graphs

    @property
    def kv(self) -> KvManager:
        """Which sequences hold which pages."""
        return self.scheduler.capacity.kv

    @property
    def kv_events(self) -> KvEventLog | None:
        """What becomes of cached pages; None with a `kv_event_buffer` of 0. `get_latest_events` is for any thread."""
        return self._kv_events

    @property
    def running(self) -> list[Sequence]:
        """Requests that hold a slot, in the order of their admission."""
        return [*self.scheduler.running]

    @property
    def waiting(self) -> list[Sequence]:
        """Requests that wait for their guide, a slot or pages."""
        return [*self.scheduler.waiting]

    @property
    def num_waiting(self) -> int:
        """How many requests wait."""
        waiting = self.scheduler.waiting
        return len(waiting.queue.requests) + len(waiting.unready)

    @property
    def has_work(self) -> bool:
        """Whether some request is not finished, or the step that says so is due."""
        return self._is_busy or self.num_waiting > 0

    @property
    def can_step(self) -> bool:
        """Whether a step would do something. It would not where all there is waits for guides to be compiled, or for
        matchers to start, and nobody's time is up."""
        waiting = self.scheduler.waiting
        if self._is_busy or waiting.queue.requests:
            return True
        return bool(waiting.unready) and (waiting.has_compiled or waiting.has_late)

    @property
    def next_deadline(self) -> float | None:
        """The first moment, of `time.perf_counter`, at which some request must end; None without one."""
        return self.scheduler.waiting.next_deadline

    @property
    def _is_busy(self) -> bool:
        return bool(self.scheduler.running or self.output.in_flight or self._owes_step)

    def on_wake(self, wake: Callable[[], object]) -> None:
        """Let `wake` be called, on other threads, when a step would find a matcher that has started."""
        self.scheduler.waiting.starts.on_started = wake

    def set_recorder(self, recorder: Recorder) -> None:
        """Let `recorder` see the iterations from now on. Needs an idle engine."""
        self.recorder = recorder
        self.runner.set_recorder(recorder)
        self.output.set_recorder(recorder)

    # -- requests

    def submit(self, sequence: Sequence) -> None:
        """Queue a request. One that can never fit fails at once."""
        self._home.check()
        try:
            self._admission.check(sequence)
        except (InputError, CapacityError) as error:
            sequence.fail(error)
            sequence.let_go()
        else:
            self.scheduler.add(sequence)

    def cancel(self, sequence: Sequence, reason: FinishReason = "cancelled") -> None:
        """End a request now; what it produced stays."""
        if not sequence.is_finished:
            self.output.finish(sequence, reason)

    # -- steps

    def step(self, launched: Callable[[], object] = lambda: None) -> StepRecord:
        """One step: schedule what fits, launch it, and process what is done. `launched` is called before the last,
        while the device is busy; it does not raise."""
        self._home.check()
        record = StepRecord(self.num_steps, time.perf_counter())
        self.num_steps += 1
        with self._scope, _CollectionPostponed():
            schedule = self._schedule(record)
            batch = self.runner.launch(schedule)
            launched()
            self.output.process(batch, record, keep=self._num_kept)
            if self.scheduler.released:
                self.runner.release(self.scheduler.take_released())
            if self.runner.snapshots.holds_ended and not self.output.in_flight:
                self.runner.snapshots.vacate(is_idle=not self.scheduler.running)
        self._complete(record)
        return record

    def _schedule(self, record: StepRecord) -> Schedule:
        """What to launch, once what must be read first is read."""
        self.output.begin(self.scheduler.waiting)
        schedule = self.scheduler.schedule_decoding(record, in_flight=bool(self.output.in_flight))
        while schedule is None or (self.output.in_flight and self.runner.waits_for_results(schedule)):
            self.output.drain(record)
            schedule = self.scheduler.schedule_decoding(record, in_flight=False)
        self.scheduler.schedule_prompts(schedule, record)
        if self.output.in_flight and self.runner.calls_host(schedule):
            self.output.drain(record)
            self.scheduler.drop_ended(schedule)
        record.active = len(self.scheduler.running)
        record.generation = [sequence.id for sequence in schedule.decoding]
        record.context = [sequence.id for sequence, _ in schedule.reading]
        record.context_tokens = sum(count for _, count in schedule.reading)
        return schedule

    def _complete(self, record: StepRecord) -> None:
        scheduler, finished = self.scheduler, self.output.finisher.count
        if record.active > len(record.generation):  # somebody that runs does not decode
            record.prompt_tokens_read = scheduler.prompt_tokens_read()
        record.completed, self._num_finished = finished - self._num_finished, finished
        record.active, record.queued = len(scheduler.running), self.num_waiting
        if record.completed or record.paused:  # who was served counts, too
            running = {sequence.id for sequence in self.running}
            record.active = len({*record.context, *record.generation} | running)
        record.compiling = len(scheduler.waiting.unready)
        record.kv = self.kv.usage()
        if self._kv_events is not None:
            self._kv_events.flush()
        grammar_s = self.grammar.state.seconds
        record.grammar_s, self._grammar_s = record.grammar_s + grammar_s - self._grammar_s, grammar_s
        record.total_s = time.perf_counter() - record.started
        self._owes_step = bool(record.active)

    def warm_up(self) -> None:
        """Read two prompts that are nobody's, and capture the graphs of every batch size and number of drafts in use,
        with guides and without.

        That is what any mix of requests needs, but for logits processors. On CUDA it is done on the thread that steps:
        libraries keep handles by thread.
        """
        began = time.perf_counter()
        with self._scope, _CollectionPostponed():
            self.output.drain(StepRecord(self.num_steps, began))
            self.runner.warm_up(self._speculation)
        _log.info("warm: %d graphs in %.1f s", len(self.graphs.plans), time.perf_counter() - began)
        self._grammar_s = self.grammar.state.seconds  # of no step

    def close(self) -> None:
        """Cancel everything and let go of graphs, streams and matchers."""
        for sequence in [*self.waiting, *self.running]:
            self.cancel(sequence)
        self.scheduler.waiting.starts.close()
        try:
            with self._scope:
                self._decoder.stream.synchronize()
                self.output.drain(StepRecord(self.num_steps, time.perf_counter()))
                self.graphs.close()
                self.grammar.close()
        finally:
            if self._kv_events is not None:
                self._kv_events.close()
        if self.recorder is not None:
            self.recorder.close()
