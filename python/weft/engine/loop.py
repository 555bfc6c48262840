"""The engine's loop: admit, read prompts, decode, hand out what was committed.

`Engine.step` is one turn. It launches one iteration for the requests that decode, and parts of prompts; then it reads
what was launched: of this turn, or with overlap of the turn before. Everything a request holds (slot, pages, matcher)
is taken on admission and given back when it finishes, however it finishes, once no work in flight names it. What fails
is the request that failed; where a whole iteration fails, the requests that were in it.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from weft.config import EngineConfig
from weft.core import FinishReason
from weft.engine.arrivals import Arrivals
from weft.engine.beam_group import BeamGroup
from weft.engine.beam_request import BeamRequest, check_beam_width
from weft.engine.beam_turns import BeamTurns, check_beams, fits_width
from weft.engine.commit import commit
from weft.engine.flight import Flight
from weft.engine.graphs import StepGraphs
from weft.engine.kv_cache import KvManager
from weft.engine.launcher import Launcher
from weft.engine.lifecycle import Request, Stage
from weft.engine.outputs import OutputBuffers
from weft.engine.recorder import FlightRecorder
from weft.engine.records import TurnRecord
from weft.engine.request_drafts import check_drafts
from weft.engine.residents import Residents
from weft.engine.results import ResultRings, StepResults
from weft.engine.scheduler import share_tokens, victim
from weft.engine.state import DecodeParts, SlotState
from weft.engine.step import Plan
from weft.errors import CapacityError, GuideError, InputError, RequestError
from weft.guided.host_lane import HostLane
from weft.guided.lane import GrammarLane
from weft.guided.protocol import Lane
from weft.models.base import Model, PagedKV
from weft.runtime.interface import Runtime, Stream
from weft.runtime.scope import FailureScope
from weft.runtime.segments import SegmentedStream
from weft.spec.load import Drafting


class Engine:
    """Decodes many requests at once on one device, one iteration in flight, or two with overlap.

    `config` is resolved (`EngineConfig.resolved`). Not thread-safe: one thread steps it.
    """

    def __init__(
        self,
        runtime: Runtime,
        model: Model,
        kv: PagedKV,
        drafting: Drafting,
        end_token_ids: list[int],
        config: EngineConfig,
    ) -> None:
        assert config.max_seq_len is not None and config.max_num_tokens is not None
        check_beam_width(config.max_beam_width, drafting.speculation, config)
        self.config = config
        self.runtime = runtime
        self.num_iterations = 0
        self.num_turns = 0
        self._max_num_tokens = config.max_num_tokens
        self._end_tokens = frozenset(end_token_ids)
        self._scope = FailureScope()
        self._stream = runtime.stream()
        self._speculation = drafting.speculation
        max_drafts = self._speculation.max_draft_tokens
        shape = (config.max_batch, max(max_drafts, 1), model.config.vocab_size, end_token_ids)
        make_proposals = drafting.proposals_maker(runtime)
        self.lane: Lane
        eager: Stream = self._stream
        if config.graphs == "split":
            self.lane = HostLane(runtime, self._stream, *shape, make_proposals=make_proposals)
            eager = SegmentedStream(runtime, self._stream, capture=False)
        else:
            self.lane = GrammarLane(runtime, *shape, make_proposals=make_proposals)
        pages_per_slot = config.pages_for(config.max_seq_len, max_drafts)
        self.parts = DecodeParts(
            model,
            kv,
            drafting.drafter,
            SlotState(self.lane, pages_per_slot, config.max_seq_len),
            has_proposals=make_proposals is not None,
            max_drafts=max_drafts,
            simulated=config.simulate_acceptance,
            outputs=OutputBuffers.allocate(
                runtime,
                self._stream,
                model,
                config.max_batch + 1,
                max(max_drafts, 1) + 1,
                generation_logits=config.gather_generation_logits,
                additional=config.additional_outputs,
            ),
        )
        self.graphs = StepGraphs(runtime, self._stream, self.lane, self.parts, config.graphs)
        self.arrivals = Arrivals(config.max_idle_s)
        self.residents = Residents(runtime, eager, self.lane, self.parts, self.graphs, config)
        self.launcher = Launcher(
            runtime, eager, self.lane, self.parts, self.graphs, self.residents, self._speculation, config
        )
        self._beams: BeamTurns | None = None
        if config.max_beam_width > 1:
            group = BeamGroup(runtime, self._stream, self.parts, end_token_ids, config)
            self._beams = BeamTurns(group, self.residents)
        is_overlapped = runtime.device.type == "cuda" if config.overlap == "auto" else config.overlap
        self._depth = 2 if is_overlapped and config.graphs != "split" else 1
        self._rings = ResultRings(runtime, self._stream, self.parts.state, self.parts.outputs)
        self._flights: deque[Flight] = deque()
        self._last_read = 0.0
        self._grammar_s = 0.0
        self._num_completed = 0
        self._owes_turn = False

    @property
    def has_work(self) -> bool:
        """Whether some request is not finished, or the turn that says so is due."""
        return bool(self.residents.active or len(self.arrivals) or self._flights or self._owes_turn)

    @property
    def is_blocked(self) -> bool:
        """Whether a turn could do nothing: all there is waits for guides that are not compiled yet."""
        busy = self.residents.active or len(self.arrivals.queue) or self._flights or self._owes_turn
        return not busy and not self.arrivals.has_compiled

    @property
    def next_deadline(self) -> float | None:
        """The first moment, of `time.perf_counter`, at which some request must end; None without one."""
        return self.arrivals.next_deadline

    @property
    def active(self) -> list[Request]:
        """Requests that hold a slot, in the order of their admission."""
        return self.residents.active

    @property
    def waiting(self) -> list[Request]:
        """Requests that wait for their guide, a slot or pages."""
        return [*self.arrivals]

    @property
    def kv(self) -> KvManager:
        """Who holds which pages."""
        return self.residents.kv

    @property
    def recorder(self) -> FlightRecorder | None:
        """What records the grammar's iterations."""
        return self.residents.recorder

    def record(self, recorder: FlightRecorder) -> None:
        """Let `recorder` see the iterations from now on. Needs an idle engine."""
        self.residents.recorder = recorder

    def submit(self, request: Request) -> None:
        """Queue a request. One that can never fit fails at once."""
        try:
            self._check(request)
        except (InputError, CapacityError) as error:
            request.fail(error)
        else:
            request.room = self.residents.room(request)
            self.arrivals.add(request)

    def cancel(self, request: Request, reason: FinishReason = "cancelled") -> None:
        """End a request now; what it produced stays."""
        if not request.is_finished:
            self._end(request, reason)

    def step(self) -> TurnRecord:
        """One turn: admit what fits, launch what there is to do, and read what is done."""
        turn = TurnRecord(self.num_turns, time.perf_counter())
        self.num_turns += 1
        with self._scope, collection_postponed():
            for request in self.arrivals.late():
                self._end(request, "timeout")
            for request, error in self.arrivals.collect():
                self._end(request, "error", error)
            self._check_flights()
            flight = Flight()
            self._decode(turn, flight)
            self._read_prompts(turn, flight)
            self._search(turn)
            if flight.requests:
                flight.results = self._rings.start(flight.wants_logprobs, flight.gathers)
                self._flights.append(flight)
            while len(self._flights) > (self._depth - 1 if flight.requests else 0):
                self._read(turn)
        turn.completed, self._num_completed = self._num_completed, 0
        served = {*turn.context, *turn.generation} | {request.id for request in self.residents.active}
        turn.active, turn.queued = len(served), len(self.arrivals)
        turn.compiling = len(self.arrivals.compiling)
        turn.kv = self.residents.kv.usage()
        grammar_s = self.lane.state.seconds
        turn.grammar_s, self._grammar_s = turn.grammar_s + grammar_s - self._grammar_s, grammar_s
        turn.total_s = time.perf_counter() - turn.started
        self._owes_turn = bool(turn.active)
        return turn

    def warm_up(self) -> None:
        """Capture the graphs of every batch size and number of drafts in use, with guides and without.

        Those of requests with more sampling parameters than temperature and seed, or with log-probabilities, are
        captured when such a request comes.
        """
        with self._scope, collection_postponed():
            self._land(TurnRecord(self.num_turns, time.perf_counter()))
            self.launcher.warm_up()

    def close(self) -> None:
        """Cancel everything and let go of graphs, streams and matchers."""
        for request in [*self.arrivals, *self.residents.active]:
            self.cancel(request)
        with self._scope:
            self._stream.synchronize()
            self._land(TurnRecord(self.num_turns, time.perf_counter()))
            if self._beams is not None:
                self._beams.close()
            self.graphs.close()
            self.lane.close()
        if self.recorder is not None:
            self.recorder.close()

    # -- who is served

    def _check(self, request: Request) -> None:
        """Raise `InputError` or `CapacityError` for a request that can never be served."""
        check_drafts(request, self._speculation, self.parts.model.config.vocab_size)
        self.parts.outputs.check(request.gather)
        check_beams(request, self.config.max_beam_width)
        longest, num_pages = self.config.max_seq_len, self.residents.kv.num_pages - 1
        assert longest is not None
        if not request.prompt:
            raise InputError("the prompt is empty; give at least one token")
        if len(request.prompt) + 1 > longest:
            raise CapacityError(
                f"the prompt has {len(request.prompt)} tokens, but max_seq_len is {longest} "
                "(prompt and answer); shorten the prompt or raise EngineConfig.max_seq_len"
            )
        pages = self._home(request).pages_needed(request)
        if pages > num_pages:
            raise CapacityError(
                f"the request needs {pages} pages, but there are {num_pages}; lower max_tokens or raise "
                "EngineConfig.num_pages"
            )

    def _home(self, request: Request) -> Residents | BeamTurns:
        """Where a request takes what it holds from."""
        if isinstance(request, BeamRequest):
            assert self._beams is not None
            return self._beams
        return self.residents

    def _admit(self, turn: TurnRecord, budget: int) -> None:
        """Give slots and pages to those who wait, in their order, while there is something to read for them."""
        config, active = self.config, self.residents.active
        if turn.paused or (config.policy == "static_batch" and active):
            return
        for request in list(self.arrivals.queue):
            unread = sum(r.row.remaining for r in active if r.row is not None)
            reads_all = config.chunking == "equal_progress" and config.chunked
            if budget <= (0 if reads_all else unread):
                return
            if not config.chunked and unread + request.num_tokens > budget:
                return
            if not fits_width(request, active) or not self._home(request).take(request):
                return
            self.arrivals.admit(request)
            turn.new_active += 1
            turn.new_active_queue_s += time.perf_counter() - request.created
            try:
                self._home(request).open(request)
            except Exception as error:
                self._end(request, "error", error)

    def _preempt(self, request: Request, turn: TurnRecord) -> None:
        """Take slot and pages back from a request that nothing in flight names. Its text and its matcher stay."""
        assert not request.in_flight
        turn.paused.append(request.id)
        self.residents.store(request)
        self.residents.leave(request)
        request.move(Stage.QUEUED)
        self.arrivals.add_again(request)

    # -- launching

    def _decode(self, turn: TurnRecord, flight: Flight) -> None:
        """Launch one iteration for all that decode."""
        found = self._decodable(turn)
        if found is None:
            return
        rows, plan, masks_drafts = found
        turn.generation = [request.id for request in rows]
        flight.began = time.perf_counter()
        try:
            self.launcher.decode(flight, rows, plan, masks_drafts)
        except Exception as error:
            broken = [r for r in rows if r.captured is not None and r.captured.failure is not None]
            self._fail_launch(broken or rows, error, turn)
        else:
            self.num_iterations += 1

    def _decodable(self, turn: TurnRecord) -> tuple[list[Request], Plan, bool] | None:
        """Who decodes in this turn, with pages for what they may write; the kind of iteration that is; and whether
        the grammar has a say in its drafts."""
        while True:
            rows = self._wanting()
            if not rows:
                self.launcher.forget()
                return None
            plan, masks_drafts = self.launcher.plan_for(rows)
            if self._flights and not self.launcher.is_ready(plan):
                self._land(turn)
            elif self.residents.reserves_all or all(self.residents.grow(request) for request in rows):
                return rows, plan, masks_drafts
            elif self._flights:
                self._land(turn)
            else:
                self._preempt(victim(self.residents.active), turn)

    def _wanting(self) -> list[Request]:
        """Who has room for more tokens than what is in flight surely adds."""
        rows = [
            r
            for r in self.residents.active
            if r.stage is Stage.GENERATION and len(r.output.token_ids) + r.surely < r.room
        ]
        return rows if self._beams is None else [r for r in rows if not isinstance(r, BeamRequest)]

    def _read_prompts(self, turn: TurnRecord, flight: Flight) -> None:
        """Launch parts of prompts, as many tokens as the turn has left."""
        budget = self._max_num_tokens - len(flight.rows) * (flight.num_drafts + 1)
        if len(self.arrivals.queue):
            self._admit(turn, budget)
        rows = [(r, r.row) for r in self.residents.active if r.stage is Stage.CONTEXT and r.row is not None]
        if not rows:
            return
        config, remaining = self.config, [row.remaining for _, row in rows]
        shares = share_tokens(remaining, budget, config.chunking, config.page_size, whole=not config.chunked)
        for (request, _), count in zip(rows, shares, strict=True):
            if not count or request.stage is not Stage.CONTEXT:
                continue
            turn.context.append(request.id)
            turn.context_tokens += count
            try:
                self.launcher.read_part(flight, request, count)
            except Exception as error:
                self._fail_launch([request], error, turn)

    def _search(self, turn: TurnRecord) -> None:
        """A turn of the beam requests: launched and read."""
        for ending in self._beams.step(turn) if self._beams is not None else ():
            self._end(ending.request, ending.reason, ending.error)

    # -- reading

    def _land(self, turn: TurnRecord) -> None:
        """Read all that is in flight."""
        while self._flights:
            self._read(turn)

    def _read(self, turn: TurnRecord) -> None:
        """Wait for the oldest flight, and hand out what it committed."""
        flight = self._flights.popleft()
        assert flight.results is not None
        waiting_since = time.perf_counter()
        try:
            results = flight.results.wait()
            self.runtime.check()
        except Exception as error:
            self._fail_flight(flight, error)
            return
        now = time.perf_counter()
        turn.model_s += now - waiting_since
        seconds, self._last_read = now - max(flight.began, self._last_read), now
        self._observe(flight, results, seconds)
        for request in flight.first:
            if not request.is_finished:
                self._take_first(request, results, turn)
        for request in flight.rows:
            if request.stage is not Stage.FINISHED:
                self._take(request, results, flight.num_drafts, turn)
        for request in flight.reading:
            if not request.is_finished and request.row is not None and request.row.error is not None:
                self._end(request, "error", request.row.error)
        self._disembark(flight)

    def _observe(self, flight: Flight, results: StepResults, seconds: float) -> None:
        """Tell whoever decides about masked drafts what the iteration cost and gave."""
        plan = flight.plan
        if plan is None or not plan.guided or not plan.num_drafts:
            return
        rows = [r for r in flight.rows if r.compiled is not None and not r.is_finished]
        committed = sum(results.count(request.slot) + 1 for request in rows)
        kind = (plan.batch, plan.num_drafts)
        self.launcher.guidance.observe(kind, flight.masks_drafts, seconds, committed)

    def _take_first(self, request: Request, results: StepResults, turn: TurnRecord) -> None:
        assert request.row is not None
        if request.row.error is not None:
            self._end(request, "error", request.row.error)
            return
        stats = request.output.stats
        if not request.resumed_at:
            stats.time_to_first_token_s = time.perf_counter() - request.created
            stats.reused_tokens = request.row.first
        self._commit(request, results, turn)

    def _take(self, request: Request, results: StepResults, num_drafts: int, turn: TurnRecord) -> None:
        stats = request.output.stats
        stats.iterations += 1
        before, accepted = len(request.output.token_ids), stats.accepted_drafts
        self._commit(request, results, turn)
        if num_drafts and stats.iterations > 1:
            stats.drafted_iterations += 1
            stats.drafted_tokens += len(request.output.token_ids) - before
            stats.verified_drafts += num_drafts
            turn.speculating += 1
            turn.drafted_tokens += num_drafts
            turn.accepted_tokens += stats.accepted_drafts - accepted

    def _commit(self, request: Request, results: StepResults, turn: TurnRecord) -> None:
        """Append what the iteration committed to the request, and end it where it ends."""
        grammar = self.lane.state if request.compiled is not None else None
        before = len(request.output.token_ids)
        try:
            reason = commit(request, results, request.room, self._end_tokens, grammar)
        except Exception as error:  # whatever it is, the others' tokens are committed on the device
            self._end(request, "error", error)
            return
        turn.generated_tokens += len(request.output.token_ids) - before
        stats = request.output.stats
        stats.first_turn = turn.number if stats.first_turn is None else stats.first_turn
        stats.last_turn = turn.number
        self.residents.store(request)
        if reason is not None:
            self._end(request, reason)
        else:
            request.report()

    def _disembark(self, flight: Flight) -> None:
        """The flight is over: what waited for it is given back."""
        for request in flight.end():
            self.residents.give_back(request)

    # -- ends

    def _fail_flight(self, flight: Flight, error: BaseException) -> None:
        """What was launched together fails together, and with it what later work can't go on without."""
        self._end_all(flight.requests, error)
        try:
            self.runtime.synchronize()
        except Exception as later:
            self._end_all([request for other in self._flights for request in other.requests], later)
        self.launcher.drop_snapshots()
        self._disembark(flight)

    def _fail_launch(self, requests: Sequence[Request], error: BaseException, turn: TurnRecord) -> None:
        """Who was to be launched fails; and what is in flight, since a launch also raises what failed there."""
        self._end_all([request for flight in self._flights for request in flight.requests], error)
        self._end_all(requests, error)
        self._land(turn)
        self.launcher.drop_snapshots()

    def _check_flights(self) -> None:
        """Hear of what failed in flight before anything else is launched, which would be blamed for it."""
        try:
            self.runtime.check()
        except Exception as error:
            self._end_all([request for flight in self._flights for request in flight.requests], error)

    def _end_all(self, requests: Sequence[Request], error: BaseException) -> None:
        for request in requests:
            if not request.is_finished:
                self._end(request, "error", error)

    def _end(self, request: Request, reason: FinishReason, error: BaseException | None = None) -> None:
        """Finish a request and, unless work in flight names it, give back what it holds."""
        self.arrivals.forget(request)
        if error is not None and not isinstance(error, RequestError | InputError):
            kind = GuideError if request.stage is Stage.COMPILING else RequestError
            wrapped = kind(f"{type(error).__name__}: {error}")
            wrapped.__cause__ = error
            error = wrapped
        if request.is_active:
            if request.compiled is not None and not isinstance(request, BeamRequest):
                request.output.stats.guided_valid = (
                    reason == "stop"
                    and request.output.stopped_by is None
                    and self.lane.state.is_terminated(request.slot)
                )
            self._home(request).leave(request)
        self._num_completed += 1
        request.finish(reason, error)
        if error is not None and self.recorder is not None:
            self.recorder.failed(request)


@contextmanager
def collection_postponed() -> Iterator[None]:
    """Collect no garbage while work is in flight: what a collection frees may be the device's, and it takes long."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
