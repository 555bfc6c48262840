"""Beam requests under way together: their prompts are read, their beams advance, an iteration at a time.

The host is between the parts of every iteration: it fills the masks of guided beams while the forward runs, and waits
for the continuations to pick the beams of the next one. Slots and pages belong to whoever calls: a request gets all it
can ever need by `start`, and nothing of it is used after `end`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from weft.config import EngineConfig
from weft.core import FinishReason
from weft.engine.beam.pages import beam_pages_needed
from weft.engine.beam.request import BeamRequest, BeamRun
from weft.engine.beam.search import Continuation
from weft.engine.beam.step import (
    BeamBuffers,
    BeamPlan,
    beam_forward,
    beam_select,
    copy_beam_pages,
    open_beams,
    read_prompt_chunk,
)
from weft.engine.device.state import DecodeParts
from weft.engine.request import Stage
from weft.engine.stats import TurnRecord
from weft.engine.step.graphs import bucket
from weft.runtime.buffers import PinnedRing
from weft.runtime.interface import Runtime, Stream
from weft.runtime.segments import SegmentedStream


@dataclass(frozen=True)
class BeamEnding:
    """A request that is over, and why. Its answers are in it; whoever gets this calls `BeamGroup.end` and finishes
    the request."""

    request: BeamRequest
    reason: FinishReason
    error: Exception | None = None


class _Transfers:
    """The buffers of one kind of iteration and the rings around them."""

    def __init__(self, runtime: Runtime, plan: BeamPlan, parts: DecodeParts) -> None:
        self.buf = BeamBuffers.allocate(plan.rows, plan.offered, parts)
        runtime.publish()
        self.inputs = PinnedRing(runtime, self.buf.inputs_4N)
        self.pages = PinnedRing(runtime, self.buf.pages_NP)
        self.values = PinnedRing(runtime, self.buf.values_NC)
        self.ids = PinnedRing(runtime, self.buf.ids_NC)
        self.masks = PinnedRing(runtime, self.buf.masks_NW)
        self.is_masked = PinnedRing(runtime, self.buf.is_masked_N)


@dataclass
class _Round:
    """The beams of one iteration, row by row, the turn that it is part of, and who failed in it."""

    runs: list[BeamRun]
    record: TurnRecord
    failed: dict[BeamRun, Exception] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return sum(len(run.search.beams) for run in self.runs)


class BeamGroup:
    """The beam requests of one engine. `config` is resolved; `parts` have no drafter.

    Not thread-safe, and of one stream: `step` waits for what it launches, so between two calls nothing is in flight.
    """

    def __init__(
        self,
        runtime: Runtime,
        stream: Stream,
        parts: DecodeParts,
        end_token_ids: Sequence[int],
        config: EngineConfig,
    ) -> None:
        assert config.max_seq_len is not None and parts.drafter is None and not parts.has_proposals
        self._runtime, self._stream, self._parts, self._config = runtime, stream, parts, config
        self._max_seq_len = config.max_seq_len
        self._end_tokens = frozenset(end_token_ids)
        self._runs: dict[int, BeamRun] = {}
        self._transfers: dict[tuple[int, int], _Transfers] = {}
        self._segments: dict[BeamPlan, SegmentedStream] = {}
        self.num_iterations = 0

    @property
    def has_work(self) -> bool:
        """Whether some request is under way."""
        return bool(self._runs)

    @property
    def num_replays(self) -> int:
        """Graphs launched so far."""
        return sum(segments.num_replays for segments in self._segments.values())

    def pages_needed(self, request: BeamRequest) -> int:
        """Pages that `start` wants: those of the prompt, and what its beams may write."""
        room = self._room(request)
        return beam_pages_needed(len(request.prompt), room, request.beam.width, self._config.page_size)

    def start(
        self,
        request: BeamRequest,
        slots: Sequence[int],
        pages: Sequence[int],
        first: int = 0,
        copies: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Take a request in (its stage is CONTEXT; its guide is compiled): `slots`, one for each beam, and `pages`,
        `pages_needed` of them, of which the first hold the prompt.

        Keys and values of the prompt's first `first` tokens are there once `copies`, pairs of pages (from, to), are
        made; full pages of the prompt are only read again. Raises what the matcher raises; the request is not
        taken in then.
        """
        assert len(slots) == request.beam.width and len(pages) == self.pages_needed(request)
        run = BeamRun.begin(
            request, self._runtime, self._parts, tuple(slots), pages, self._config.page_size, self._end_tokens,
            self._room(request), self._config.mask_time_limit_s or 0.0,
        )  # fmt: skip
        run.first, run.copies = first, list(copies)
        self._runs[request.id] = run

    def step(self, turn: TurnRecord | None = None) -> list[BeamEnding]:
        """One turn: read the prompts that are new, then advance every beam by a token. Who ended is returned; `turn` is
        told what was done, and how long the host waited.

        A failing matcher ends its own request, a failing iteration those that were in it.
        """
        turn = turn or TurnRecord(self.num_iterations, time.perf_counter())
        endings = []
        for run in [run for run in self._runs.values() if run.request.stage is Stage.CONTEXT]:
            turn.context.append(run.request.id)
            turn.context_tokens += len(run.request.prompt) - run.first
            endings += self._turn(run.plan(1), _Round([run], turn))
        ended = {ending.request.id for ending in endings}
        runs = [run for run in self._runs.values() if run.request.id not in ended]
        if not runs:
            return endings
        plan = BeamPlan(
            bucket(sum(len(run.search.beams) for run in runs), self._config.max_batch),
            max(run.plan(1).offered for run in runs),
            any(run.matchers for run in runs),
            any(run.is_shaped for run in runs),
        )
        turn.generation += [run.request.id for run in runs]
        return endings + self._turn(plan, _Round(runs, turn))

    def end(self, request: BeamRequest) -> None:
        """Forget a request: its slots and pages are free. One that is not here is left alone."""
        self._runs.pop(request.id, None)

    def close(self) -> None:
        """Forget every request, and let go of graphs."""
        self._runs.clear()
        for segments in self._segments.values():
            segments.close()
        self._segments.clear()

    # -- an iteration

    def _turn(self, plan: BeamPlan, turn: _Round) -> list[BeamEnding]:
        """Read one prompt, or advance the beams of all runs; give each its continuations."""
        runs = turn.runs
        is_prompt = runs[0].request.stage is Stage.CONTEXT
        try:
            offers = self._read(plan, turn) if is_prompt else self._decode(plan, turn)
        except Exception as error:
            return [BeamEnding(run.request, "error", error) for run in runs]
        self.num_iterations += not is_prompt
        now, endings = time.perf_counter(), []
        for run in runs:
            mine, offers = offers[: len(run.search.beams)], offers[len(run.search.beams) :]
            try:
                if run in turn.failed:
                    raise turn.failed[run]
                reason = run.advance([row[: run.search.num_needed] for row in mine])
            except Exception as error:
                endings.append(BeamEnding(run.request, "error", error))
                continue
            request = run.request
            turn.record.generated_tokens += 1
            request.output.stats.note_tokens(now, turn.record.number)
            if is_prompt:
                request.move(Stage.GENERATION)
            else:
                request.output.stats.iterations += 1
            if reason is None:
                request.report()
            else:
                endings.append(BeamEnding(request, reason))
        return endings

    def _read(self, plan: BeamPlan, turn: _Round) -> list[list[Continuation]]:
        """Read a prompt in chunks; continuations of its one beam."""
        (run,), transfers, stream = turn.runs, self._of(plan), self._stream
        chunk, prompt, pages = self._config.prefill_chunk, run.prompt, run.prompt_pages
        self._send(transfers, turn)
        stream.launch(open_beams, self._parts.state, run.row, run.slots)
        for start in range(run.first, prompt.shape[0], chunk):
            tokens, is_last = prompt[start : start + chunk], start + chunk >= prompt.shape[0]
            stream.launch(read_prompt_chunk, plan, self._parts, transfers.buf, tokens, pages, start, is_last)
        if plan.guided:
            self._mask(transfers, turn)
        stream.launch(beam_select, plan, self._parts, transfers.buf)
        return self._receive(transfers, turn)

    def _decode(self, plan: BeamPlan, turn: _Round) -> list[list[Continuation]]:
        """Advance every beam; continuations of each."""
        try:
            self._issue(plan, turn, self._prepare(plan))
            return self._receive(self._of(plan), turn)
        except Exception:
            if plan in self._segments:  # it may have stopped halfway
                self._segments.pop(plan).close()
            raise

    def _issue(self, plan: BeamPlan, turn: _Round, stream: SegmentedStream) -> None:
        """The two parts of an iteration; the masks are made while the device is at the first."""
        transfers = self._of(plan)
        self._send(transfers, turn)
        stream.begin()
        stream.launch(beam_forward, plan, self._parts, transfers.buf)
        if plan.guided:
            stream.flush()
            self._mask(transfers, turn)
        stream.launch(beam_select, plan, self._parts, transfers.buf)
        stream.flush()

    def _send(self, transfers: _Transfers, turn: _Round) -> None:
        """Copy the pages that beams part in, and say what each row is; rows beyond the beams only pad."""
        copies = [pair for run in turn.runs for pair in run.copies]
        if copies:
            pairs = self._runtime.pinned((2, len(copies)), torch.int64)
            pairs.copy_(torch.tensor(copies).T)
            self._stream.launch(copy_beam_pages, self._parts, pairs)
        rows, width = transfers.buf.pages_NP.shape
        inputs = torch.zeros(4, rows, dtype=torch.int64)
        inputs[:2] = self._parts.state.dummy
        beams = [beam for run in turn.runs for beam in run.rows()]
        if beams:
            inputs[:, : len(beams)] = torch.tensor(beams).T
        pages = torch.zeros(rows, width, dtype=torch.int32)
        table, i = pages.numpy(), 0
        for run in turn.runs:
            run.copies = []
            for held in run.pages.tables:
                table[i, : len(held)] = held
                i += 1
        transfers.inputs.send(self._stream, inputs)
        transfers.pages.send(self._stream, pages)

    def _mask(self, transfers: _Transfers, turn: _Round) -> None:
        """Fill the masks of guided beams; a matcher that fails fails its request."""
        masks = torch.zeros_like(transfers.buf.masks_NW, device="cpu")
        is_masked = torch.zeros_like(transfers.buf.is_masked_N, device="cpu")
        words, flags, i = masks.numpy(), is_masked.numpy(), 0
        began = time.perf_counter()
        for run in turn.runs:
            try:
                with run.clock.measured("masks"):
                    for b, matcher in enumerate(run.matchers):
                        flags[i + b] = matcher.fill(words[i + b])
            except Exception as error:
                turn.failed[run] = error
            i += len(run.search.beams)
        turn.record.grammar_s += time.perf_counter() - began
        transfers.masks.send(self._stream, masks)
        transfers.is_masked.send(self._stream, is_masked)

    def _receive(self, transfers: _Transfers, turn: _Round) -> list[list[Continuation]]:
        """Wait for the continuations of every row, the likeliest first, without the impossible ones."""
        received = transfers.values.start_receive(self._stream), transfers.ids.start_receive(self._stream)
        began = time.perf_counter()
        values, ids = (each.wait()[: turn.num_rows].tolist() for each in received)
        turn.record.model_s += time.perf_counter() - began
        self._runtime.check()
        return [
            [(token, value) for token, value in zip(*row, strict=True) if value > -torch.inf]
            for row in zip(ids, values, strict=True)
        ]

    def _of(self, plan: BeamPlan) -> _Transfers:
        key = (plan.rows, plan.offered)
        if key not in self._transfers:
            self._transfers[key] = _Transfers(self._runtime, plan, self._parts)
        return self._transfers[key]

    def _prepare(self, plan: BeamPlan) -> SegmentedStream:
        """The stream of this kind of iteration; its two parts are captured, over rows that only pad."""
        if plan not in self._segments:
            captures = self._config.graphs != "none"
            segments = SegmentedStream(self._runtime, self._stream, capture=captures)
            for _ in range(2 if captures else 0):
                self._issue(plan, _Round([], TurnRecord(0, 0.0)), segments)
            segments.num_replays = 0
            self._segments[plan] = segments
        return self._segments[plan]

    def _room(self, request: BeamRequest) -> int:
        return min(request.sampling.max_tokens, self._max_seq_len - len(request.prompt))
