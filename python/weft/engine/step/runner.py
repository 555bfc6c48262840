"""Launching iterations and parts of prompts: which kind, with which snapshot, on which streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.config import EngineConfig, Speculation
from weft.core import SamplingParams
from weft.engine.device.sampling import SamplingRow, TokenRules
from weft.engine.device.state import DecodeParts
from weft.engine.processors.captured import CapturedProcessor
from weft.engine.processors.host import HostWork
from weft.engine.request import Request, Stage
from weft.engine.scheduling.running import Residents
from weft.engine.step.draft_masking import DraftGuidance
from weft.engine.step.graphs import StepGraphs, bucket
from weft.engine.step.in_flight import Flight
from weft.engine.step.prefill import PrefillBuffers, PromptRow, open_row, read_prompt
from weft.engine.step.step import Plan
from weft.guided.protocol import Lane
from weft.runtime.interface import Runtime, Stream

SHORT_PROMPT = 8
"""Tokens of the shorter of the two prompts that are read to warm up: another attention kernel is for few rows."""


class Launcher:
    """Issues work; nothing here waits, but where something failed or was never captured. `graphs` may be replaced by
    others of the same engine, while it is idle."""

    def __init__(
        self,
        runtime: Runtime,
        eager: Stream,
        lane: Lane,
        parts: DecodeParts,
        graphs: StepGraphs,
        residents: Residents,
        speculation: Speculation,
        config: EngineConfig,
    ) -> None:
        self._runtime, self._eager, self._lane, self._parts = runtime, eager, lane, parts
        self.graphs, self._residents = graphs, residents
        self._speculation = speculation
        assert config.max_seq_len is not None
        self._max_batch, self._max_prompt = config.max_batch, config.max_seq_len - 1
        self._rows: list[Request] = []
        self._plans: dict[bool, Plan] = {}  # of `_rows`, by whether drafts are masked
        self._prefill = PrefillBuffers(parts, config.prefill_chunk)
        self.guidance = DraftGuidance(speculation.guide_drafts)

    def plan_for(self, rows: list[Request]) -> tuple[Plan, bool]:
        """The kind of iteration that decodes `rows`, and whether the grammar has a say in its drafts."""
        if rows != self._rows:  # most iterations are of the rows of the one before
            self._rows, self._plans = rows, {}
        num_drafts = self._speculation.draft_tokens(len(rows))
        if any(request.max_drafts is not None for request in rows):
            most = max(num_drafts if r.max_drafts is None else r.max_drafts for r in rows)
            num_drafts = min(num_drafts, most)
        batch = bucket(len(rows), self._max_batch)
        masks_drafts = num_drafts > 0 and self.guidance.choose((batch, num_drafts))
        if masks_drafts not in self._plans:
            self._plans[masks_drafts] = self._plan(rows, batch, num_drafts, masks_drafts)
        return self._plans[masks_drafts], masks_drafts

    def forget(self) -> None:
        """Nobody decodes: let go of those who did last."""
        self._rows, self._plans = [], {}

    def is_ready(self, plan: Plan) -> bool:
        """Whether an iteration may be launched while another is in flight."""
        return not plan.needs_host and self.graphs.is_ready(plan)

    def decode(self, flight: Flight, rows: list[Request], plan: Plan, masks_drafts: bool) -> None:
        """Launch an iteration over `rows`."""
        slots = [request.slot for request in rows]
        if self._lane.proposals is not None and plan.num_drafts:
            self._lane.proposals.set_guided(masks_drafts)
        self._prepare(plan)
        self.graphs.send_slots(plan, slots)
        if plan.guided or self._parts.has_proposals:
            self._push(slots, plan.num_drafts)
        self.graphs.run(plan, rows)
        flight.plan, flight.masks_drafts = plan, masks_drafts
        flight.wants_logprobs, flight.wants_outputs = plan.logprobs, plan.gathers
        flight.add_rows(rows)

    def read_part(self, flight: Flight, request: Request, count: int) -> None:
        """Launch the reading of `count` more tokens of a prompt; behind the last one, the first token is sampled."""
        row = request.row
        assert row is not None
        is_last = count == row.remaining
        plan = self._plan([request], 1, 0, masks_drafts=False)
        if is_last and request.matcher is not None:
            self._residents.attach[request.slot] = request.matcher
        self._read(row, count, plan, lambda: self._push([request.slot]), self.graphs.host_work([request]))
        flight.wants_logprobs |= is_last and plan.logprobs
        flight.wants_outputs |= is_last and plan.gathers
        flight.add(request, flight.first if is_last else flight.reading, surely=int(is_last))
        if is_last:
            request.move(Stage.GENERATION)

    def warm_up(self) -> None:
        """Read a short prompt and one as long as a chunk, and capture the graphs of every batch size and number of
        drafts in use. What kernels need is loaded and compiled then, for this thread. Needs an idle engine.

        The prompts are of the slot that only pads, whose pages are nobody's: nothing of them is left.
        """
        self._read_nothing(SHORT_PROMPT, guided=True)
        self._read_nothing(self._prefill.chunk, guided=False)
        for rows in range(1, self._max_batch + 1):
            batch, num_drafts = bucket(rows, self._max_batch), self._speculation.draft_tokens(rows)
            self._prepare(self._plan_of(batch, num_drafts, guided=False, masks_drafts=False))
            for masks_drafts in self.guidance.ways:
                self._prepare(self._plan_of(batch, num_drafts, guided=True, masks_drafts=masks_drafts))

    def _read(
        self, row: PromptRow, count: int, plan: Plan, push: Callable[[], object], host: HostWork | None = None
    ) -> None:
        read_prompt(self._eager, self._lane, self._parts, self._prefill, row, count, plan, push, host)

    def _read_nothing(self, length: int, guided: bool) -> None:
        """Read a prompt in the slot that only pads, and sample behind it. Waits for it."""
        self.drop_snapshots()
        tokens = [0] * min(length, self._max_prompt)
        vocab = self._parts.model.config.vocab_size
        sampling = SamplingRow(self._runtime, SamplingParams(), 0, TokenRules(), tokens, vocab)
        row = PromptRow(self._runtime, self._parts.state.dummy, tokens, (), sampling)
        plan = self._plan_of(1, 0, guided=guided, masks_drafts=False)
        open_row(self._eager, self._lane, self._parts, row)
        self._read(row, len(tokens), plan, lambda: self._lane.push([], {}))
        self._eager.synchronize()
        if row.error is not None:
            raise row.error

    def vacate(self) -> None:
        """Let go of the matchers of requests that have ended, with nothing in flight. Without, they would stay until
        the next iteration with a guide."""
        if self._lane.state.num_pending:
            return
        slots = [slot for slot, matcher in self._residents.attach.items() if matcher is None]
        self._lane.state.vacate(slots)
        self._residents.holds_ended = self._residents.holds_program = False

    def drop_snapshots(self) -> None:
        """Take what iterations left whose launch failed: the next one must not. Waits for those in flight, which take
        theirs."""
        if self._lane.state.num_pending:
            self._runtime.synchronize()
            while self._lane.state.num_pending:
                self._lane.state.fetch()

    def _prepare(self, plan: Plan) -> None:
        if not self.graphs.is_ready(plan):
            self.drop_snapshots()
            self.graphs.prepare(plan)

    def _plan_of(self, batch: int, num_drafts: int, guided: bool, masks_drafts: bool) -> Plan:
        """A plan without more sampling than temperature and seed."""
        has_masked_drafts = guided and masks_drafts and num_drafts > 0 and self._parts.drafter is not None
        return Plan(batch, num_drafts, guided, has_masked_drafts, shaped=False, logprobs=False)

    def _plan(self, rows: list[Request], batch: int, num_drafts: int, masks_drafts: bool) -> Plan:
        guided = any(request.compiled is not None for request in rows)
        return replace(
            self._plan_of(batch, num_drafts, guided, masks_drafts),
            shaped=any(request.is_shaped for request in rows),
            logprobs=any(request.sampling.logprobs is not None for request in rows),
            gathers=any(r.gather.generated or (r.stage is Stage.CONTEXT and r.gather.context) for r in rows),
            processed=any(r.processor is not None and r.captured is None for r in rows),
            captured=captured_processors(rows),
            tempered=any(r.matcher is not None and r.matcher.has_temperature for r in rows),
        )

    def _push(self, slots: list[int], num_drafts: int = 0) -> None:
        attach, self._residents.attach = self._residents.attach, {}
        self._lane.push(slots, attach, num_drafts)


def captured_processors(rows: list[Request]) -> tuple[CapturedProcessor, ...]:
    """Those of the rows, each once, in one order."""
    found = {request.captured for request in rows if request.captured is not None}
    return tuple(sorted(found, key=lambda entry: entry.number))
