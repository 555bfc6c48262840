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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from weft.config import EngineConfig, Speculation, positions_ahead
from weft.core import FinishReason
from weft.engine.adaptive import DraftGuidance
from weft.engine.commit import commit
from weft.engine.graphs import StepGraphs, bucket
from weft.engine.kv_cache import KvManager
from weft.engine.lifecycle import Request, Stage
from weft.engine.outputs import Gather, OutputBuffers
from weft.engine.prefill import PrefillBuffers, PromptRow, open_row, read_prompt, write_pages
from weft.engine.processors import CapturedProcessor, CapturedProcessors, request_id
from weft.engine.records import TurnRecord
from weft.engine.request_drafts import check_drafts, draft_limit
from weft.engine.results import ResultRings, StepResults
from weft.engine.sampling_state import SamplingRow
from weft.engine.scheduler import WaitingQueue, share_tokens, victim
from weft.engine.state import DecodeParts, SlotState
from weft.engine.step import Plan
from weft.errors import CapacityError, GuideError, InputError, RequestError
from weft.grammar.base import Matcher
from weft.guided.host_lane import HostLane
from weft.guided.lane import GrammarLane
from weft.guided.protocol import Lane
from weft.models.base import Model, PagedKV
from weft.runtime.interface import Runtime, Stream
from weft.runtime.scope import FailureScope
from weft.runtime.segments import SegmentedStream
from weft.spec.load import Drafting


@dataclass
class Flight:
    """What a turn launched, until it is read: `rows` decoded under `plan`, `first` have their first token, `reading`
    read a part of their prompt."""

    plan: Plan | None = None
    rows: list[Request] = field(default_factory=list)
    first: list[Request] = field(default_factory=list)
    reading: list[Request] = field(default_factory=list)
    results: StepResults | None = None
    began: float = field(default_factory=time.perf_counter)
    masks_drafts: bool = False
    wants_logprobs: bool = False

    @property
    def requests(self) -> list[Request]:
        """All of them, each once."""
        return [*self.rows, *self.first, *self.reading]

    @property
    def gathers(self) -> dict[int, Gather]:
        """What is gathered of each slot that has new tokens."""
        return {r.slot: r.gather for r in [*self.rows, *self.first] if r.gather.generated}

    def add(self, request: Request, to: list[Request], surely: int) -> None:
        """Note a request in one of the lists; the flight gives it at least `surely` tokens."""
        to.append(request)
        request.in_flight += 1
        request.surely += surely


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
        assert config.max_seq_len is not None and config.num_pages is not None
        assert config.max_num_tokens is not None
        self.config = config
        self.runtime = runtime
        self.num_iterations = 0
        self.num_turns = 0
        self._max_seq_len = config.max_seq_len
        self._max_num_tokens = config.max_num_tokens
        self._end_tokens = frozenset(end_token_ids)
        self._scope = FailureScope()
        self._stream = runtime.stream()
        self._speculation: Speculation = drafting.speculation
        max_drafts = self._speculation.max_draft_tokens
        shape = (config.max_batch, max(max_drafts, 1), model.config.vocab_size, end_token_ids)
        make_proposals = drafting.proposals_maker(runtime)
        self.lane: Lane
        if config.graphs == "split":
            self.lane = HostLane(runtime, self._stream, *shape, make_proposals=make_proposals)
            self._eager: Stream = SegmentedStream(runtime, self._stream, capture=False)
        else:
            self.lane = GrammarLane(runtime, *shape, make_proposals=make_proposals)
            self._eager = self._stream
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
        self._captured = CapturedProcessors(self.graphs.forget)
        self.guidance = DraftGuidance(self._speculation.guide_drafts)
        is_overlapped = runtime.device.type == "cuda" if config.overlap == "auto" else config.overlap
        self._depth = 2 if is_overlapped and config.graphs != "split" else 1
        self.kv = KvManager(
            config.num_pages,
            config.page_size,
            reuse=config.reuse and config.simulate_acceptance is None,
            partial_reuse=config.partial_reuse,
            copy_on_partial_reuse=config.copy_on_partial_reuse,
        )
        self._margin = drafting.drafter.reuse_margin if drafting.drafter is not None else 0
        self._ahead = positions_ahead(max_drafts)
        self._prefill = PrefillBuffers(self.parts, config.prefill_chunk)
        self._rings = ResultRings(runtime, self._stream, self.parts.state, self.parts.outputs)
        self._free_slots = list(range(config.max_batch - 1, -1, -1))
        self._attach: dict[int, Matcher | None] = {}
        self._compiling: list[Request] = []
        self._waiting = WaitingQueue()
        self._active: list[Request] = []  # in the order of admission
        self._flights: deque[Flight] = deque()
        self._timed: dict[int, Request] = {}  # those with a deadline, by id
        self._paused: dict[int, Request] = {}  # those that were preempted and wait
        self._last_read = 0.0
        self._num_completed = 0
        self._owes_turn = False

    def _grammar_seconds(self) -> float:
        """What grammar tasks have taken so far, on any thread."""
        state = self.lane.state
        return sum(state.counters(name).seconds for name in ("fetch", "extend", "commit"))

    @property
    def has_work(self) -> bool:
        """Whether some request is not finished, or the turn that says so is due."""
        return bool(self._active or self._waiting or self._compiling or self._flights or self._owes_turn)

    @property
    def is_blocked(self) -> bool:
        """Whether a turn could do nothing: all there is waits for guides that are not compiled yet."""
        busy = self._active or self._waiting or self._flights or self._owes_turn
        return not busy and not any(r.guide is not None and r.guide.done() for r in self._compiling)

    @property
    def next_deadline(self) -> float | None:
        """The first moment, of `time.perf_counter`, at which some request must end; None without one."""
        return min((r.deadline for r in self._timed.values() if r.deadline is not None), default=None)

    @property
    def active(self) -> list[Request]:
        """Requests that hold a slot, in the order of their admission."""
        return self._active

    @property
    def waiting(self) -> list[Request]:
        """Requests that wait for their guide, a slot or pages."""
        return [*self._waiting, *self._compiling]

    def submit(self, request: Request) -> None:
        """Queue a request. One that can never fit fails at once."""
        try:
            check_drafts(request, self._speculation, self.parts.model.config.vocab_size)
            self.parts.outputs.check(request.gather)
        except InputError as error:
            request.fail(error)
            return
        needed = len(request.prompt) + 1
        pages = self.config.pages_for(self._longest(request), self.parts.max_drafts)
        if not request.prompt:
            request.fail(InputError("the prompt is empty; give at least one token"))
        elif needed > self._max_seq_len:
            request.fail(
                CapacityError(
                    f"the prompt has {len(request.prompt)} tokens, but max_seq_len is {self._max_seq_len} "
                    "(prompt and answer); shorten the prompt or raise EngineConfig.max_seq_len"
                )
            )
        elif pages > self.kv.num_pages - 1:
            request.fail(
                CapacityError(
                    f"the request needs {pages} pages, but there are "
                    f"{self.kv.num_pages - 1}; lower max_tokens or raise EngineConfig.num_pages"
                )
            )
        else:
            if request.deadline is not None:
                self._timed[request.id] = request
            if request.stage is Stage.COMPILING:
                self._compiling.append(request)
            else:
                self._waiting.add(request)

    def cancel(self, request: Request, reason: FinishReason = "cancelled") -> None:
        """End a request now; what it produced stays."""
        if not request.is_finished:
            self._end(request, reason)

    def step(self) -> TurnRecord:
        """One turn: admit what fits, launch what there is to do, and read what is done."""
        turn = TurnRecord(self.num_turns, time.perf_counter())
        self.num_turns += 1
        grammar_s = self._grammar_seconds()
        with self._scope, collection_postponed():
            self._expire()
            self._collect_guides()
            flight = Flight()
            self._decode(turn, flight)
            self._read_prompts(turn, flight)
            if flight.requests:
                flight.results = self._rings.start(flight.wants_logprobs, flight.gathers)
                self._flights.append(flight)
            while len(self._flights) > (self._depth - 1 if flight.requests else 0):
                self._read(turn)
        turn.completed, self._num_completed = self._num_completed, 0
        served = {*turn.context, *turn.generation} | {request.id for request in self._active}
        turn.active, turn.queued = len(served), len(self._waiting) + len(self._compiling)
        turn.compiling = len(self._compiling)
        turn.kv = self.kv.usage()
        turn.grammar_s = self._grammar_seconds() - grammar_s
        turn.total_s = time.perf_counter() - turn.started
        self._owes_turn = bool(turn.active)
        return turn

    def close(self) -> None:
        """Cancel everything and let go of graphs, streams and matchers."""
        for request in [*self.waiting, *self._active]:
            self.cancel(request)
        with self._scope:
            self._stream.synchronize()
            self._land()
            self.graphs.close()
            self.lane.close()

    # -- who is served

    def _expire(self) -> None:
        """End what is past its time."""
        now = time.perf_counter()
        for request in list(self._timed.values()):
            if request.deadline is not None and now >= request.deadline:
                self._end(request, "timeout")
        for request in list(self._paused.values()):
            if now - request.paused_at > self.config.max_idle_s:
                self._end(request, "timeout")

    def _collect_guides(self) -> None:
        """Queue requests whose guide is compiled."""
        for request in [r for r in self._compiling if r.guide is not None and r.guide.done()]:
            assert request.guide is not None
            error = request.guide.exception()
            request.output.stats.compile_s = time.perf_counter() - request.created
            if error is None:
                request.compiled = request.guide.result()
                self._compiling.remove(request)
                request.move(Stage.QUEUED)
                self._waiting.add(request)
            else:
                self._end(request, "error", error)

    def _admit(self, turn: TurnRecord, budget: int) -> None:
        """Give slots and pages to those who wait, in their order, while there is something to read for them."""
        if self.config.policy == "static_batch" and self._active and not turn.new_active:
            return
        for request in list(self._waiting):
            wanted = sum(r.row.remaining for r in self._active if r.row is not None)
            is_reading = self.config.chunking == "equal_progress"
            if turn.paused or not self._free_slots or budget <= (0 if is_reading else wanted):
                return
            if not self.config.chunked and wanted + request.num_tokens > budget:
                return
            if not self._open(request):
                return
            turn.new_active += 1
            turn.new_active_queue_s += time.perf_counter() - request.created

    def _open(self, request: Request) -> bool:
        """Make a request active. False: there are not the pages for it; nothing has changed then."""
        answer = request.output.token_ids
        keeps_all = self.config.policy != "max_utilization"
        positions = self._longest(request) if keeps_all else request.num_tokens
        text = request.text
        if not keeps_all and self._active:
            # Whoever is admitted should not be the next to be preempted.
            wanted = self.kv.pages_needed(positions + self._ahead) + len(self._active)
            if wanted > self.kv.num_available:
                return False
        kv = self.kv.begin(
            text,
            positions + self._ahead,
            margin=self._margin,
            reuse=not (request.gather.context and not answer),
            retention=request.retention,
            num_prompt=len(request.prompt),
        )
        if kv is None:
            return False
        self._waiting.remove(request)
        request.move(Stage.CONTEXT)
        request.slot, request.kv, request.resumed_at = self._free_slots.pop(), kv, len(answer)
        self._paused.pop(request.id, None)
        request.started = request.started or time.perf_counter()
        self._active.append(request)
        try:
            sampling = SamplingRow(
                self.runtime,
                request.sampling,
                request.seed,
                request.rules,
                request.prompt,
                self.parts.model.config.vocab_size,
                answer,
                draft_limit(request, self.parts.max_drafts),
            )
            request.is_shaped = sampling.needs_shaping
            if request.compiled is not None and request.matcher is None:
                request.matcher = request.compiled.matcher()
            if self.lane.proposals is not None:
                room = request.sampling.max_tokens - len(answer)
                self.lane.proposals.open(request.slot, text, room, request.given, len(answer))
            if request.processor is not None and request.processor.allows_capture:
                request.captured = self._captured.take(request.processor)
            if request.gather.context and not answer:
                request.gathered.context = self.parts.outputs.context_tensors(
                    self.runtime, request.gather, len(request.prompt)
                )
            request.row = PromptRow(
                self.runtime,
                request.slot,
                text,
                kv.pages,
                sampling,
                kv.num_reused,
                kv.copies,
                request.gathered.context,
                request_id(request),
                request.captured.number if request.captured is not None else 0,
            )
            open_row(self._eager, self.lane, self.parts, request.row)
        except Exception as error:
            self._end(request, "error", error)
        return True

    def _preempt(self, request: Request, turn: TurnRecord) -> None:
        """Take slot and pages back from a request that nothing in flight names. Its text and its matcher stay."""
        assert not request.in_flight
        turn.paused.append(request.id)
        self._store(request)
        self._give_back(request)
        self._active.remove(request)
        request.move(Stage.QUEUED)
        request.paused_at = time.perf_counter()
        self._paused[request.id] = request
        self._waiting.add(request)

    def _longest(self, request: Request) -> int:
        return min(len(request.prompt) + request.sampling.max_tokens, self._max_seq_len)

    # -- launching

    def _read_prompts(self, turn: TurnRecord, flight: Flight) -> None:
        """Launch parts of prompts, as many tokens as the turn has left."""
        num_drafts = flight.plan.num_drafts if flight.plan is not None else 0
        budget = self._max_num_tokens - len(flight.rows) * (num_drafts + 1)
        if self._waiting:
            self._admit(turn, budget)
        rows = [(r, r.row) for r in self._active if r.stage is Stage.CONTEXT and r.row is not None]
        if not rows:
            return
        config = self.config
        remaining = [row.remaining for _, row in rows]
        shares = share_tokens(remaining, budget, config.chunking, config.page_size, whole=not config.chunked)
        for (request, row), count in zip(rows, shares, strict=True):
            if count:
                self._read_part(turn, flight, request, row, count)

    def _read_part(
        self, turn: TurnRecord, flight: Flight, request: Request, row: PromptRow, count: int
    ) -> None:
        plan = self._plan([request], 1, 0, masks_drafts=False)
        is_last = count == row.remaining
        turn.context.append(request.id)
        turn.context_tokens += count
        if is_last and request.matcher is not None:
            self._attach[request.slot] = request.matcher
        slots = [request.slot]
        lane, parts = self.lane, self.parts
        try:
            host = self.graphs.host_work([request])
            read_prompt(
                self._eager, lane, parts, self._prefill, row, count, plan, lambda: self._push(slots), host
            )
        except Exception as error:
            self._fail_launch([request], error, turn)
            return
        flight.wants_logprobs |= is_last and plan.logprobs
        flight.add(request, flight.first if is_last else flight.reading, surely=int(is_last))
        if is_last:
            request.move(Stage.GENERATION)

    def _decode(self, turn: TurnRecord, flight: Flight) -> None:
        """Launch one iteration for all that decode."""
        rows, plan, masks_drafts = self._decodable(turn)
        if plan is None:
            return
        turn.generation = [request.id for request in rows]
        slots = [request.slot for request in rows]
        try:
            if self.lane.proposals is not None and plan.num_drafts:
                self.lane.proposals.set_guided(masks_drafts)
            self._prepare(plan)
            self.graphs.send_slots(plan, slots)
            flight.began = time.perf_counter()
            if plan.guided or self.parts.has_proposals:
                self._push(slots, plan.num_drafts)
            self.graphs.run(plan, rows)
        except Exception as error:
            broken = [r for r in rows if r.captured is not None and r.captured.failure is not None]
            self._fail_launch(broken or rows, error, turn)
            return
        flight.plan, flight.masks_drafts, flight.wants_logprobs = plan, masks_drafts, plan.logprobs
        for request in rows:
            flight.add(request, flight.rows, surely=1)
        self.num_iterations += 1

    def _decodable(self, turn: TurnRecord) -> tuple[list[Request], Plan | None, bool]:
        """Who decodes in this turn, with pages for what they may write; the kind of iteration that is; and whether
        the grammar has a say in its drafts."""
        while True:
            rows = [request for request in self._active if self._wants_token(request)]
            if not rows:
                return rows, None, False
            num_drafts = self._speculation.draft_tokens(len(rows))
            limits = [request.max_drafts for request in rows if request.max_drafts is not None]
            if len(limits) == len(rows):
                num_drafts = min(num_drafts, max(limits))
            batch = bucket(len(rows), self.config.max_batch)
            masks_drafts = num_drafts > 0 and self.guidance.choose((batch, num_drafts))
            plan = self._plan(rows, batch, num_drafts, masks_drafts)
            if self._flights and (plan.needs_host or not self.graphs.is_ready(plan)):
                self._land(turn)
            elif self._reserve(rows, turn):
                return rows, plan, masks_drafts

    def _wants_token(self, request: Request) -> bool:
        room = self._longest(request) - len(request.prompt)
        return request.stage is Stage.GENERATION and len(request.output.token_ids) + request.surely < room

    def _reserve(self, rows: list[Request], turn: TurnRecord) -> bool:
        """Pages for what an iteration may write. False: that took reading what is in flight, or preempting someone;
        ask again who decodes."""
        if self.config.policy != "max_utilization":
            return True
        for request in rows:
            assert request.kv is not None
            before = len(request.kv.pages)
            if not self.kv.grow(request.kv, request.num_tokens + self._ahead):
                if self._flights:
                    self._land(turn)
                else:
                    self._preempt(victim(self._active), turn)
                return False
            if len(request.kv.pages) > before:
                pages = self.runtime.pinned((len(request.kv.pages),), torch.int32)
                pages.copy_(torch.tensor(request.kv.pages, dtype=torch.int32))
                self._eager.launch(write_pages, self.parts.state, request.slot, pages)
        return True

    def warm_up(self) -> None:
        """Capture the graphs of every batch size and number of drafts in use, with guides and without.

        Those of requests with more sampling parameters than temperature and seed, or with log-probabilities, are
        captured when such a request comes.
        """
        with self._scope, collection_postponed():
            self._land()
            for rows in range(1, self.config.max_batch + 1):
                batch, num_drafts = bucket(rows, self.config.max_batch), self._speculation.draft_tokens(rows)
                self._prepare(self._plan_of(batch, num_drafts, guided=False, masks_drafts=False))
                for masks_drafts in self.guidance.ways:
                    self._prepare(self._plan_of(batch, num_drafts, guided=True, masks_drafts=masks_drafts))

    def _prepare(self, plan: Plan) -> None:
        if not self.graphs.is_ready(plan):
            self._drop_snapshots()
            self.graphs.prepare(plan)

    def _plan_of(self, batch: int, num_drafts: int, guided: bool, masks_drafts: bool) -> Plan:
        """A plan without more sampling than temperature and seed."""
        has_masked_drafts = guided and masks_drafts and num_drafts > 0 and self.parts.drafter is not None
        return Plan(batch, num_drafts, guided, has_masked_drafts, shaped=False, logprobs=False)

    def _plan(self, rows: list[Request], batch: int, num_drafts: int, masks_drafts: bool) -> Plan:
        guided = any(request.compiled is not None for request in rows)
        return replace(
            self._plan_of(batch, num_drafts, guided, masks_drafts),
            shaped=any(request.is_shaped for request in rows),
            logprobs=any(request.sampling.logprobs is not None for request in rows),
            gathers=any(r.gather.generated or (r.stage is Stage.CONTEXT and r.gather.context) for r in rows),
            processed=any(r.processor is not None and r.captured is None for r in rows),
            captured=captured(rows),
        )

    def _push(self, slots: list[int], num_drafts: int = 0) -> None:
        attach, self._attach = self._attach, {}
        self.lane.push(slots, attach, num_drafts)

    def _drop_snapshots(self) -> None:
        """Take what iterations left whose launch failed: the next one must not. Waits for what is in flight."""
        if self.lane.state.num_pending:
            self.runtime.synchronize()
            while self.lane.state.num_pending:
                self.lane.state.fetch()

    # -- reading

    def _land(self, turn: TurnRecord | None = None) -> None:
        """Read all that is in flight."""
        while self._flights:
            self._read(turn or TurnRecord(self.num_turns, time.perf_counter()))

    def _read(self, turn: TurnRecord) -> None:
        """Wait for the oldest flight, and hand out what it committed."""
        flight = self._flights.popleft()
        assert flight.results is not None
        waiting_since = time.perf_counter()
        try:
            results = flight.results.wait()
            self.runtime.check()
        except Exception as error:
            self._fail_flight(flight, error, turn)
            return
        now = time.perf_counter()
        turn.model_s += now - waiting_since
        seconds, self._last_read = now - max(flight.began, self._last_read), now
        self._observe(flight, results, seconds)
        for request in flight.first:
            if not request.is_finished:
                self._take_first(request, results, turn)
        num_drafts = flight.plan.num_drafts if flight.plan is not None else 0
        for request in flight.rows:
            if not request.is_finished:
                self._take(request, results, num_drafts, turn)
        for request in flight.reading:
            if not request.is_finished and request.row is not None and request.row.error is not None:
                self._end(request, "error", request.row.error)
        self._disembark(flight)

    def _observe(self, flight: Flight, results: StepResults, seconds: float) -> None:
        plan = flight.plan
        if plan is None or not plan.guided or not plan.num_drafts:
            return
        rows = [r for r in flight.rows if r.compiled is not None and not r.is_finished]
        committed = sum(results.count(request.slot) + 1 for request in rows)
        self.guidance.observe((plan.batch, plan.num_drafts), flight.masks_drafts, seconds, committed)

    def _take_first(self, request: Request, results: StepResults, turn: TurnRecord) -> None:
        assert request.row is not None
        if request.row.error is not None:
            self._end(request, "error", request.row.error)
            return
        stats = request.output.stats
        if not request.resumed_at:
            stats.time_to_first_token_s = time.perf_counter() - request.created
        stats.reused_tokens += request.row.first if not request.resumed_at else 0
        self._commit(request, results, turn)

    def _take(self, request: Request, results: StepResults, num_drafts: int, turn: TurnRecord) -> None:
        stats = request.output.stats
        stats.iterations += 1
        before, accepted = len(request.output.token_ids), stats.accepted_drafts
        self._commit(request, results, turn)
        if num_drafts and stats.iterations > 1:
            stats.drafted_iterations += 1
            stats.drafted_tokens += len(request.output.token_ids) - before
            turn.speculating += 1
            turn.drafted_tokens += num_drafts
            turn.accepted_tokens += stats.accepted_drafts - accepted

    def _commit(self, request: Request, results: StepResults, turn: TurnRecord) -> None:
        """Append what the iteration committed to the request, and end it where it ends."""
        room = self._longest(request) - len(request.prompt)
        grammar = self.lane.state if request.compiled is not None else None
        before = len(request.output.token_ids)
        try:
            reason = commit(request, results, room, self._end_tokens, grammar)
        except Exception as error:  # whatever it is, the others' tokens are committed on the device
            self._end(request, "error", error)
            return
        turn.generated_tokens += len(request.output.token_ids) - before
        self._store(request)
        if reason is not None:
            self._end(request, reason)
        else:
            request.report()

    def _store(self, request: Request) -> None:
        """Let others find the pages that are full by now. The last token's keys and values are not there yet."""
        assert request.kv is not None
        valid = request.num_tokens - 1 - self._margin
        if valid >= (len(request.kv.chain) + 1) * self.config.page_size:
            self.kv.store(request.kv, request.text, valid)

    def _disembark(self, flight: Flight) -> None:
        """The flight is over: what waited for it is given back."""
        for request in flight.rows:
            request.surely -= 1
        for request in flight.first:
            request.surely -= 1
        for request in flight.requests:
            request.in_flight -= 1
            if request.is_finished and not request.in_flight:
                self._give_back(request)

    # -- ends

    def _fail_flight(self, flight: Flight, error: BaseException, turn: TurnRecord) -> None:
        """What was launched together fails together, and with it what later work can't go on without."""
        self._end_all(flight.requests, error)
        try:
            self.runtime.synchronize()
        except Exception as later:
            self._end_all([request for other in self._flights for request in other.requests], later)
        self._drop_snapshots()
        self._disembark(flight)

    def _fail_launch(self, requests: list[Request], error: BaseException, turn: TurnRecord) -> None:
        """Who was to be launched fails; what is in flight goes on."""
        self._land(turn)
        self._end_all(requests, error)
        self._drop_snapshots()

    def _end_all(self, requests: list[Request], error: BaseException) -> None:
        for request in requests:
            if not request.is_finished:
                self._end(request, "error", error)

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        error: BaseException | None = None,
    ) -> None:
        """Finish a request and, unless work in flight names it, give back what it holds."""
        stage = request.stage
        if request.is_active:
            if request.compiled is not None:
                request.output.stats.guided_valid = (
                    reason == "stop"
                    and request.output.stopped_by is None
                    and self.lane.state.is_terminated(request.slot)
                )
            self._active.remove(request)
        elif request in self._waiting:
            self._waiting.remove(request)
        elif request in self._compiling:
            self._compiling.remove(request)
        self._timed.pop(request.id, None)
        self._paused.pop(request.id, None)
        if error is not None and not isinstance(error, RequestError | InputError):
            kind = GuideError if stage is Stage.COMPILING else RequestError
            wrapped = kind(f"{type(error).__name__}: {error}")
            wrapped.__cause__ = error
            error = wrapped
        self._num_completed += 1
        if not request.in_flight:
            self._give_back(request)
        request.finish(reason, error)

    def _give_back(self, request: Request) -> None:
        """Slot and pages; the matcher leaves the slot with the next snapshot."""
        if request.kv is None:
            return
        if request.compiled is not None:
            self._attach[request.slot] = None
        self._free_slots.append(request.slot)
        self.kv.end(request.kv)
        if request.captured is not None:
            self._captured.give_back(request.captured)
            request.captured = None
        request.slot, request.kv, request.row = -1, None, None


def captured(rows: list[Request]) -> tuple[CapturedProcessor, ...]:
    """The captured processors of the rows, each once, in one order."""
    found = {request.captured for request in rows if request.captured is not None}
    return tuple(sorted(found, key=lambda entry: entry.number))


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
