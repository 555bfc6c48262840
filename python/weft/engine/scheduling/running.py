"""Who holds what: slots, pages, matchers, from admission until nothing in flight names a request any more."""

from __future__ import annotations

import torch

from weft.config import EngineConfig, positions_ahead
from weft.engine.device.sampling import SamplingRow
from weft.engine.device.state import DecodeParts
from weft.engine.flight_recorder import FlightRecorder
from weft.engine.kv.cache import KvManager
from weft.engine.processors.base import request_id
from weft.engine.processors.captured import CapturedProcessors
from weft.engine.request import Request, Stage
from weft.engine.scheduling.draft_limits import draft_limit
from weft.engine.step.graphs import StepGraphs
from weft.engine.step.prefill import PromptRow, open_row, write_pages
from weft.grammar.base import Matcher
from weft.grammar.starts import StartedGuide
from weft.guided.protocol import Lane
from weft.runtime.interface import Runtime, Stream


class Residents:
    """Requests that hold a slot. `stream` is where work that only prepares slots is issued, eagerly.

    `active` is in the order of admission. `reserves_all`: whether a request gets all pages it may need at once.
    `recorder` is told who gets a slot. `attach` says which slots get or lose a matcher with the next snapshot;
    `holds_ended`: whether a slot still has the matcher of a request that has ended, and `holds_program`, a large one.
    """

    def __init__(
        self,
        runtime: Runtime,
        stream: Stream,
        lane: Lane,
        parts: DecodeParts,
        graphs: StepGraphs,
        config: EngineConfig,
    ) -> None:
        assert config.num_pages is not None and config.max_seq_len is not None
        self.active: list[Request] = []
        self.recorder: FlightRecorder | None = None
        self._reuses = config.reuse and config.simulate_acceptance is None
        self.attach: dict[int, Matcher | None] = {}
        self.holds_ended = self.holds_program = False
        self.kv = KvManager(
            config.num_pages,
            config.page_size,
            reuse=self._reuses,
            partial_reuse=config.partial_reuse,
            copy_on_partial_reuse=config.copy_on_partial_reuse,
        )
        self._runtime, self._stream, self._lane, self._parts = runtime, stream, lane, parts
        self._max_seq_len = config.max_seq_len
        self.reserves_all = config.policy != "max_utilization"
        self._margin = parts.drafter.reuse_margin if parts.drafter is not None else 0
        self._ahead = positions_ahead(parts.max_drafts)
        self._captured = CapturedProcessors(graphs.forget)
        self.free_slots = list(range(config.max_batch - 1, -1, -1))

    @property
    def may_vacate(self) -> bool:
        """Whether matchers of requests that have ended are worth a wait for the device: large ones, or nobody else is
        there."""
        return self.holds_program or (self.holds_ended and not self.active)

    def longest(self, request: Request) -> int:
        """How many tokens the request's text may come to."""
        return min(len(request.prompt) + request.sampling.max_tokens, self._max_seq_len)

    def room(self, request: Request) -> int:
        """How many tokens its answer may have."""
        return self.longest(request) - len(request.prompt)

    def pages_needed(self, request: Request) -> int:
        """Pages that hold the longest text the request may come to, and what is written beyond."""
        return self.kv.pages_needed(self.longest(request) + self._ahead)

    def take(self, request: Request) -> bool:
        """Give the request a slot and pages. False: there are not enough; nothing has changed then."""
        if not self.free_slots:
            return False
        tokens = request.text
        resumed = len(request.output.token_ids)
        positions = (self.longest(request) if self.reserves_all else len(tokens)) + self._ahead
        # Whoever is admitted should not be the next to be preempted.
        spare = 0 if self.reserves_all else len(self.active)
        if spare and self.kv.pages_needed(positions) + spare > self.kv.num_available:
            return False
        kv = self.kv.begin(
            tokens,
            positions,
            margin=self._margin,
            reuse=not request.gather.context or resumed > 0,
            retention=request.retention,
            num_prompt=len(request.prompt),
        )
        if kv is None:
            return False
        request.move(Stage.CONTEXT)
        request.stores_at = 0
        request.slot, request.kv, request.resumed_at = self.free_slots.pop(), kv, resumed
        request.output.stats.note_scheduled()
        self.active.append(request)
        return True

    def open(self, request: Request) -> None:
        """Make the slot the request's, on the device and for the grammar. What this raises is the request's own."""
        assert request.kv is not None
        tokens, resumed = request.text, request.resumed_at
        sampling = SamplingRow(
            self._runtime,
            request.sampling,
            request.seed,
            request.rules,
            request.prompt,
            self._parts.model.config.vocab_size,
            tokens[len(request.prompt) :],
            draft_limit(request, self._parts.max_drafts),
        )
        if request.compiled is not None and request.matcher is None:
            request.matcher = request.new_matcher()
        may_heat = request.matcher is not None and request.matcher.has_temperature
        request.is_shaped = sampling.needs_shaping or (may_heat and request.sampling.truncates)
        if self.recorder is not None:
            self.recorder.watch(request, request.slot, request.matcher)
        if self._lane.proposals is not None:
            room = request.sampling.max_tokens - resumed
            self._lane.proposals.open(request.slot, tokens, room, request.given, resumed)
        if request.processor is not None and request.processor.allows_capture:
            request.captured = self._captured.take(request.processor)
        if request.gather.context and not resumed:
            request.gathered.context = self._parts.outputs.context_tensors(
                self._runtime, request.gather, len(request.prompt)
            )
        request.row = PromptRow(
            self._runtime,
            request.slot,
            tokens,
            request.kv.pages,
            sampling,
            request.kv.num_reused,
            request.kv.copies,
            request.gathered.context,
            request_id(request),
            request.captured.number if request.captured is not None else 0,
        )
        open_row(self._stream, self._lane, self._parts, request.row)

    def grow(self, request: Request) -> bool:
        """Pages for what the next iteration may write. False: there are not as many."""
        assert request.kv is not None
        if self.reserves_all:
            return True
        before = len(request.kv.pages)
        if not self.kv.grow(request.kv, request.num_tokens + self._ahead):
            return False
        if len(request.kv.pages) > before:
            pages = self._runtime.pinned((len(request.kv.pages),), torch.int32)
            pages.copy_(torch.tensor(request.kv.pages, dtype=torch.int32))
            self._stream.launch(write_pages, self._parts.state, request.slot, pages)
        return True

    def store(self, request: Request) -> None:
        """Let others find the pages that are full by now. The last token's keys and values are not there yet."""
        assert request.kv is not None
        if not self._reuses:
            request.stores_at = request.room + 1  # never
            return
        kv, behind = request.kv, len(request.prompt) - 1 - self._margin
        valid = behind + len(request.output.token_ids)
        if valid >= (len(kv.chain) + 1) * self.kv.page_size:
            self.kv.store(kv, request.text, valid)
        request.stores_at = (len(kv.chain) + 1) * self.kv.page_size - behind

    def leave(self, request: Request) -> None:
        """The request ends or is preempted. What it holds is given back now, or when no work in flight names it."""
        self.active.remove(request)
        if not request.in_flight:
            self.give_back(request)

    def give_back(self, request: Request) -> None:
        """Slot and pages; the matcher leaves the slot with the next snapshot."""
        if request.kv is None:
            return
        if request.compiled is not None:
            self.attach[request.slot] = None
            self.holds_ended = True
            self.holds_program |= isinstance(request.compiled, StartedGuide)
        self.free_slots.append(request.slot)
        self.kv.end(request.kv)
        if request.captured is not None:
            self._captured.give_back(request.captured)
            request.captured = None
        request.slot, request.kv, request.row = -1, None, None
        if request.is_finished:
            request.let_go()
