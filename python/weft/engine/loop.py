"""The engine's loop: admit, read prompts, decode, hand out what was committed.

`Engine.step` is one turn. Everything a request holds (slot, pages, matcher) is taken on admission and given back when
it finishes, however it finishes. What fails is the request that failed; where a whole iteration fails, the requests
that were in it.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import contextmanager
from dataclasses import replace

from weft.config import EngineConfig, Speculation
from weft.core import FinishReason
from weft.engine.adaptive import DraftGuidance
from weft.engine.commit import commit
from weft.engine.graphs import StepGraphs, bucket
from weft.engine.kv_cache import PageAllocator
from weft.engine.lifecycle import Request, Stage
from weft.engine.prefill import PrefillBuffers, PromptRow, prefill
from weft.engine.results import ResultRings, StepResults
from weft.engine.sampling_state import SamplingRow
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


class Engine:
    """Decodes many requests at once on one device, one iteration in flight.

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
        self.config = config
        self.runtime = runtime
        self.num_iterations = 0
        self._max_seq_len = config.max_seq_len
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
        )
        self.graphs = StepGraphs(runtime, self._stream, self.lane, self.parts, config.graphs)
        self.guidance = DraftGuidance(self._speculation.guide_drafts)
        self._pages = PageAllocator(config.num_pages)
        self._prefill = PrefillBuffers(self.parts, config.prefill_chunk)
        self._results = ResultRings(runtime, self._stream, self.parts.state)
        self._free_slots = list(range(config.max_batch - 1, -1, -1))
        self._attach: dict[int, Matcher | None] = {}
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []

    @property
    def has_work(self) -> bool:
        """Whether some request is not finished."""
        return bool(self._waiting or self._running)

    def submit(self, request: Request) -> None:
        """Queue a request. One that can never fit fails at once."""
        needed = len(request.prompt) + 1
        if not request.prompt:
            request.fail(InputError("the prompt is empty; give at least one token"))
        elif needed > self._max_seq_len:
            request.fail(
                CapacityError(
                    f"the prompt has {len(request.prompt)} tokens, but max_seq_len is {self._max_seq_len} "
                    "(prompt and answer); shorten the prompt or raise EngineConfig.max_seq_len"
                )
            )
        elif self._pages_needed(request) > self._pages.num_pages - 1:
            request.fail(
                CapacityError(
                    f"the request needs {self._pages_needed(request)} pages, but there are "
                    f"{self._pages.num_pages - 1}; lower max_tokens or raise EngineConfig.num_pages"
                )
            )
        else:
            self._waiting.append(request)

    def cancel(self, request: Request) -> None:
        """End a request now; what it produced stays."""
        if not request.is_finished:
            self._end(request, "cancelled")

    def step(self) -> None:
        """One turn: admit what fits, then one decode iteration for everything that runs."""
        with self._scope, collection_postponed():
            self._admit()
            if self._running:
                self._decode()

    def close(self) -> None:
        """Cancel everything and let go of graphs, streams and matchers."""
        for request in [*self._waiting, *self._running]:
            self.cancel(request)
        with self._scope:
            self._stream.synchronize()
            self.graphs.close()
            self.lane.close()

    # -- admission

    def _admit(self) -> None:
        self._collect_guides()
        for request in [r for r in self._waiting if r.stage is Stage.QUEUED]:
            pages = self._pages.allocate(self._pages_needed(request)) if self._free_slots else None
            if pages is None:
                return
            self._waiting.remove(request)
            request.move(Stage.CONTEXT)
            request.slot, request.pages = self._free_slots.pop(), pages
            request.started = time.perf_counter()
            self._running.append(request)
            self._read_prompt(request)

    def _collect_guides(self) -> None:
        """Move requests whose guide is compiled to the queue; wait for one if there is nothing else to do."""
        compiling = [
            (r, r.guide) for r in self._waiting if r.stage is Stage.COMPILING and r.guide is not None
        ]
        if compiling and len(compiling) == len(self._waiting) and not self._running:
            wait({future for _, future in compiling}, return_when=FIRST_COMPLETED)
        for request, future in compiling:
            if not future.done():
                continue
            error = future.exception()
            request.output.stats.compile_s = time.perf_counter() - request.created
            if error is None:
                request.compiled = future.result()
                request.move(Stage.QUEUED)
            else:
                self._end(request, "error", error)

    def _pages_needed(self, request: Request) -> int:
        total = min(len(request.prompt) + request.sampling.max_tokens, self._max_seq_len)
        return self.config.pages_for(total, self.parts.max_drafts)

    def _read_prompt(self, request: Request) -> None:
        slot = request.slot
        try:
            sampling = SamplingRow(
                self.runtime,
                request.sampling,
                request.seed,
                request.rules,
                request.prompt,
                self.parts.model.config.vocab_size,
            )
            request.is_shaped = sampling.needs_shaping
            self._attach[slot] = request.compiled.matcher() if request.compiled is not None else None
            if self.lane.proposals is not None:
                self.lane.proposals.open(slot, request.prompt, request.sampling.max_tokens)
            row = PromptRow(self.runtime, slot, request.prompt, request.pages, sampling)
            plan = self._plan([request], 1, 0, masks_drafts=False)
            prefill(self._eager, self.lane, self.parts, self._prefill, row, plan, lambda: self._push([slot]))
            results = self._results.start(plan.logprobs).wait()
            self.runtime.check()
        except Exception as error:
            self._end(request, "error", error)
            return
        request.move(Stage.GENERATION)
        request.output.stats.time_to_first_token_s = time.perf_counter() - request.created
        self._commit(request, results)

    # -- decoding

    def _decode(self) -> None:
        rows = list(self._running)
        slots = [request.slot for request in rows]
        num_drafts = self._speculation.draft_tokens(len(rows))
        batch = bucket(len(rows), self.config.max_batch)
        masks_drafts = num_drafts > 0 and self.guidance.choose((batch, num_drafts))
        plan = self._plan(rows, batch, num_drafts, masks_drafts)
        if self.lane.proposals is not None and num_drafts:
            self.lane.proposals.set_guided(masks_drafts)
        try:
            self._prepare(plan)
            self.graphs.send_slots(plan, slots)
            began = time.perf_counter()
            if plan.guided or self.parts.has_proposals:
                self._push(slots, num_drafts)
            self.graphs.run(plan)
            results = self._results.start(plan.logprobs).wait()
            self.runtime.check()
        except Exception as error:
            for request in rows:
                self._end(request, "error", error)
            return
        self.num_iterations += 1
        if plan.guided and num_drafts:
            committed = sum(results.count(r.slot) + 1 for r in rows if r.compiled is not None)
            seconds = time.perf_counter() - began
            self.guidance.observe((plan.batch, num_drafts), masks_drafts, seconds, committed)
        for request in rows:
            stats = request.output.stats
            stats.iterations += 1
            before, drafts = len(request.output.token_ids), num_drafts > 0 and stats.iterations > 1
            self._commit(request, results)
            if drafts:
                stats.drafted_iterations += 1
                stats.drafted_tokens += len(request.output.token_ids) - before

    def warm_up(self) -> None:
        """Capture the graphs of every batch size and number of drafts in use, with guides and without.

        Those of requests with more sampling parameters than temperature and seed, or with log-probabilities, are
        captured when such a request comes.
        """
        with self._scope, collection_postponed():
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
        )

    def _push(self, slots: list[int], num_drafts: int = 0) -> None:
        self._drop_snapshots()
        attach, self._attach = self._attach, {}
        self.lane.push(slots, attach, num_drafts)

    def _drop_snapshots(self) -> None:
        """Take what iterations left whose launch failed: the next one must not."""
        if self.lane.state.num_pending:
            self.runtime.synchronize()
            while self.lane.state.num_pending:
                self.lane.state.fetch()

    # -- results

    def _commit(self, request: Request, results: StepResults) -> None:
        """Append what the iteration committed to the request, and end it where it ends."""
        room = min(request.sampling.max_tokens, self._max_seq_len - len(request.prompt))
        grammar = self.lane.state if request.compiled is not None else None
        try:
            reason = commit(request, results, room, self._end_tokens, grammar)
        except Exception as error:  # whatever it is, the others' tokens are committed on the device
            self._end(request, "error", error)
            return
        if reason is not None:
            self._end(request, reason)
        else:
            request.report()

    def _end(self, request: Request, reason: FinishReason, error: BaseException | None = None) -> None:
        """Finish a request and give back what it holds."""
        if request.is_active:
            if request.compiled is not None:
                request.output.stats.guided_valid = (
                    reason == "stop"
                    and request.output.stopped_by is None
                    and self.lane.state.is_terminated(request.slot)
                )
                self._attach[request.slot] = None
            self._running.remove(request)
            self._free_slots.append(request.slot)
            self._pages.free(request.pages)
            request.slot, request.pages = -1, []
        elif request in self._waiting:
            self._waiting.remove(request)
        if error is not None and not isinstance(error, RequestError | InputError):
            kind = GuideError if request.stage is Stage.COMPILING else RequestError
            wrapped = kind(f"{type(error).__name__}: {error}")
            wrapped.__cause__ = error
            error = wrapped
        request.finish(reason, error)


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
