"""The engine's loop: admit, read prompts, decode, hand out what was committed.

`Engine.step` is one turn. It launches one iteration for the requests that decode, and parts of prompts; then it reads
what was launched: of this turn, or with overlap of the turn before. Everything a request holds (slot, pages, matcher)
is taken on admission and given back when it finishes, however it finishes, once no work in flight names it. What fails
is the request that failed; where a whole iteration fails, the requests that were in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from weft.config import EngineConfig
from weft.core import FinishReason
from weft.engine.beam.request import BeamRequest, check_beam_width
from weft.engine.beam.runner import BeamGroup
from weft.engine.beam.scheduling import BeamTurns
from weft.engine.device.results import ResultRings
from weft.engine.device.state import DecodeParts, SlotState
from weft.engine.device.tensors import OutputBuffers
from weft.engine.flight_recorder import FlightRecorder
from weft.engine.gc_pause import collection_postponed
from weft.engine.kv.cache import KvManager
from weft.engine.output.processor import Landing
from weft.engine.request import Request, Stage
from weft.engine.scheduling.finish import Ends
from weft.engine.scheduling.policy import share_tokens, victim
from weft.engine.scheduling.programs import Programs
from weft.engine.scheduling.running import Residents
from weft.engine.scheduling.scheduler import Admission
from weft.engine.scheduling.waiting import Arrivals
from weft.engine.stats import TurnRecord
from weft.engine.step.graphs import StepGraphs
from weft.engine.step.in_flight import Flight
from weft.engine.step.runner import Launcher
from weft.engine.step.step import Plan
from weft.errors import CapacityError, ExecutorError, InputError
from weft.forks import Home
from weft.grammar.starts import Starts
from weft.guided.host_lane import HostLane
from weft.guided.lane import GrammarLane
from weft.guided.protocol import Lane
from weft.models.base import Model, PagedKV
from weft.runtime.interface import Runtime, Stream
from weft.runtime.scope import FailureScope
from weft.runtime.segments import SegmentedStream
from weft.spec.load import Drafting


def _nothing() -> None:
    pass


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
        assert config.mask_time_limit_s is not None
        check_beam_width(config.max_beam_width, drafting.speculation, config)
        self._home = Home("engine", ExecutorError)
        self.config = config
        self.runtime = runtime
        self.num_iterations = 0
        self.num_turns = 0
        self._max_num_tokens = config.max_num_tokens
        self._scope = FailureScope()
        self._stream = runtime.stream()
        self._speculation = drafting.speculation
        max_drafts = self._speculation.max_draft_tokens
        shape = (config.max_batch, max(max_drafts, 1), model.config.vocab_size, end_token_ids)
        make_proposals = drafting.proposals_maker(runtime)
        mask_limit = config.mask_time_limit_s
        self.lane: Lane
        eager: Stream = self._stream
        if config.graphs == "split":
            self.lane = HostLane(
                runtime, self._stream, *shape, make_proposals=make_proposals, mask_time_limit_s=mask_limit
            )
            eager = SegmentedStream(runtime, self._stream, capture=False)
        else:
            self.lane = GrammarLane(
                runtime, *shape, make_proposals=make_proposals, mask_time_limit_s=mask_limit
            )
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
        ahead, most = config.programs_ahead, config.max_program_bytes
        assert ahead is not None and most is not None
        self.arrivals = Arrivals(config.max_idle_s, Programs(Starts(), ahead, most))
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
        rings = ResultRings(runtime, self._stream, self.parts.state, self.parts.outputs)
        self._ends = Ends(self.arrivals, self.residents, self._beams, self.lane.state)
        self.landing = Landing(
            runtime,
            rings,
            self.lane.state,
            self.residents,
            self.launcher,
            self._ends,
            frozenset(end_token_ids),
        )
        self._admission = Admission(
            config, self._speculation, self.parts, self.arrivals, self.residents, self._ends
        )
        self._grammar_s = 0.0
        self._num_ended = 0
        self._owes_turn = False
        runtime.publish()  # weights, keys and values, states and buffers

    @property
    def has_work(self) -> bool:
        """Whether some request is not finished, or the turn that says so is due."""
        return bool(self.residents.active or len(self.arrivals) or self.landing.flights or self._owes_turn)

    @property
    def is_blocked(self) -> bool:
        """Whether a turn could do nothing: all there is waits for guides to be compiled, or for programs to start."""
        busy = self.residents.active or len(self.arrivals.queue) or self.landing.flights or self._owes_turn
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
        self._home.check()
        try:
            self._admission.check(request)
        except (InputError, CapacityError) as error:
            request.fail(error)
            request.let_go()
        else:
            request.room = self.residents.room(request)
            self.arrivals.add(request)

    def cancel(self, request: Request, reason: FinishReason = "cancelled") -> None:
        """End a request now; what it produced stays."""
        if not request.is_finished:
            self._ends.end(request, reason)

    def step(self, launched: Callable[[], object] = _nothing) -> TurnRecord:
        """One turn: admit what fits, launch what there is to do, and read what is done. `launched` is called between
        the two, while the device is busy; it does not raise."""
        self._home.check()
        turn = TurnRecord(self.num_turns, time.perf_counter())
        self.num_turns += 1
        with self._scope, collection_postponed():
            for request in self.arrivals.late():
                self._ends.end(request, "timeout")
            for request, error in self.arrivals.collect():
                self._ends.end(request, "error", error)
            self.landing.check()
            flight = Flight()
            self._read_again()
            self._decode(turn, flight)
            self._read_prompts(turn, flight)
            self._search(turn)
            if flight.requests:
                self.landing.depart(flight)
            launched()
            while len(self.landing.flights) > (self._depth - 1 if flight.requests else 0):
                self.landing.read(turn)
            if self.residents.may_vacate and not self.landing.flights:
                self._vacate()
        turn.completed, self._num_ended = self._ends.count - self._num_ended, self._ends.count
        turn.active, turn.queued = len(self.residents.active), len(self.arrivals)
        if turn.completed or turn.paused:  # who was served counts, too
            served = {*turn.context, *turn.generation} | {request.id for request in self.residents.active}
            turn.active = len(served)
        turn.compiling = self.arrivals.num_compiling
        turn.kv = self.residents.kv.usage()
        grammar_s = self.lane.state.seconds
        turn.grammar_s, self._grammar_s = turn.grammar_s + grammar_s - self._grammar_s, grammar_s
        turn.total_s = time.perf_counter() - turn.started
        self._owes_turn = bool(turn.active)
        return turn

    def _vacate(self) -> None:
        try:
            self._stream.synchronize()
            self.lane.synchronize()
        except Exception:  # nobody is in flight whom it could concern
            return
        self.launcher.vacate()

    def warm_up(self) -> None:
        """Read two prompts that are nobody's, and capture the graphs of every batch size and number of drafts in use,
        with guides and without. On CUDA it is done on the thread that steps: libraries keep handles by thread.

        Those of requests with more sampling parameters than temperature and seed, or with log-probabilities, are
        captured when such a request comes.
        """
        with self._scope, collection_postponed():
            self.landing.land(TurnRecord(self.num_turns, time.perf_counter()))
            self.launcher.warm_up()
        self._grammar_s = self.lane.state.seconds  # of no turn

    def close(self) -> None:
        """Cancel everything and let go of graphs, streams and matchers."""
        for request in [*self.arrivals, *self.residents.active]:
            self.cancel(request)
        self.arrivals.programs.close()
        with self._scope:
            self._stream.synchronize()
            self.landing.land(TurnRecord(self.num_turns, time.perf_counter()))
            if self._beams is not None:
                self._beams.close()
            self.graphs.close()
            self.lane.close()
        if self.recorder is not None:
            self.recorder.close()

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
            self.landing.fail_launch(broken or rows, error, turn)
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
            if self.landing.flights and not self.launcher.is_ready(plan):
                self.landing.land(turn)
            elif self.residents.reserves_all or all(self.residents.grow(request) for request in rows):
                return rows, plan, masks_drafts
            elif self.landing.flights:
                self.landing.land(turn)
            elif self.landing.rewritten:  # they give their pages back, which no longer hold their text
                self._read_again()
            else:
                self._admission.preempt(victim(self.residents.active), turn)

    def _read_again(self) -> None:
        self.landing.rewritten = self._admission.read_again(self.landing.rewritten)

    def _wanting(self) -> list[Request]:
        """Who has room for more tokens than what is in flight surely adds."""
        rows = [
            r
            for r in self.residents.active
            if r.stage is Stage.GENERATION
            and len(r.output.token_ids) + r.surely < r.room
            and not r.is_rewritten
        ]
        return rows if self._beams is None else [r for r in rows if not isinstance(r, BeamRequest)]

    def _read_prompts(self, turn: TurnRecord, flight: Flight) -> None:
        """Launch parts of prompts, as many tokens as the turn has left."""
        budget = self._max_num_tokens - len(flight.rows) * (flight.num_drafts + 1)
        if len(self.arrivals.queue):
            self._admission.admit(turn, budget)
        if len(flight.rows) == len(self.residents.active):  # all of them decode
            return
        rows = [(r, r.row) for r in self.residents.active if r.stage is Stage.CONTEXT and r.row is not None]
        config, remaining = self.config, [row.remaining for _, row in rows]
        shares = share_tokens(remaining, budget, config.chunking, config.page_size, whole=not config.chunked)
        for (request, row), count in zip(rows, shares, strict=True):
            if count and (config.graphs == "split" or (request.processor and not request.captured)):
                self._settle(turn, flight)
            if not count or request.stage is not Stage.CONTEXT:
                continue
            turn.context.append(request.id)
            turn.context_tokens += count
            try:
                self.launcher.read_part(flight, request, count)
            except Exception as error:  # the host may have stumbled over what a part that failed left undone
                self.landing.fail_launch([request], row.error or error, turn)

    def _settle(self, turn: TurnRecord, flight: Flight) -> None:
        """Wait for what is launched: the host is about to wait for a prompt, and what failed before it would seem to be
        that prompt's fault."""
        self.landing.land(turn)
        try:
            self._stream.synchronize()
            self.runtime.check()
        except Exception as error:
            self._ends.fail(flight.requests, error)
            self.launcher.drop_snapshots()

    def _search(self, turn: TurnRecord) -> None:
        """A turn of the beam requests: launched and read."""
        for ending in self._beams.step(turn) if self._beams is not None else ():
            self._ends.end(ending.request, ending.reason, ending.error)
