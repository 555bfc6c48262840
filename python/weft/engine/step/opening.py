"""Making slots requests': sampling parameters, matcher, proposals, processor and memory of a prompt."""

from __future__ import annotations

from collections.abc import Callable

import torch

from weft.engine.device.sampling import SamplingRow, SlotSampling
from weft.engine.device.state import DecodeParts
from weft.engine.logits_processors import CapturedProcessor
from weft.engine.processors.captured import CapturedProcessors
from weft.engine.recording import Recorder
from weft.engine.request import Request
from weft.engine.scheduling.draft_limits import draft_limit
from weft.engine.scheduling.running import Running
from weft.engine.step.prefill import PromptRow, pinned_pairs
from weft.guided.lane import GrammarLane
from weft.runtime.buffers import pinned_copy
from weft.runtime.interface import Runtime


class SlotOpener:
    """Prepares admitted requests. `recorder` is told which request gets a slot; `forget` lets go of the graphs that
    hold a captured processor."""

    def __init__(
        self,
        runtime: Runtime,
        lane: GrammarLane,
        parts: DecodeParts,
        forget: Callable[[CapturedProcessor], None],
    ) -> None:
        self.recorder: Recorder | None = None
        self._runtime, self._lane, self._parts = runtime, lane, parts
        self._captured = CapturedProcessors(forget)
        self._in_use: dict[Running, CapturedProcessor] = {}

    def open(self, running: Running) -> PromptRow:
        """The row that makes the slots the request's. What this raises is the request's own."""
        request, kv = running.request, running.kv
        matcher = request.guide.begin() if request.guide is not None else None
        if self.recorder is not None:
            self.recorder.watch(request, running.slot, matcher)
        sampling = self._sampling(running)
        tokens = request.text
        if self._lane.proposals is not None:
            room = request.sampling.max_tokens - running.resumed_at
            self._lane.proposals.open(running.slot, tokens, room, request.drafts.given, running.resumed_at)
        if request.gather.context and not running.resumed_at:
            request.gathered.context = self._parts.outputs.context_tensors(
                self._runtime, request.gather, len(request.prompt)
            )
        width = self._parts.state.page_table.shape[1]
        return PromptRow(
            running.slots,
            pinned_copy(self._runtime, tokens, torch.int64),
            pinned_copy(self._runtime, kv.pages[:width], torch.int32),
            sampling,
            kv.num_reused,
            pinned_pairs(self._runtime, kv.copies),
            request.gathered.context,
            _request_id(request),
            self._capture(running),
        )

    def release(self, running: Running) -> None:
        """The request gave its slots back."""
        entry = self._in_use.pop(running, None)
        if entry is not None:
            self._captured.give_back(entry)
            if running.request.processor is not None:
                running.request.processor.captured = None

    def _sampling(self, running: Running) -> SamplingRow:
        request = running.request
        limit, is_searched = draft_limit(request, self._parts.max_drafts), running.search is not None
        sampling = SlotSampling(request.sampling, request.seed, request.rules, limit, is_searched)
        answer = () if is_searched else request.output.token_ids
        vocab_size = self._parts.model.config.vocab_size
        return SamplingRow(self._runtime, sampling, request.prompt, vocab_size, answer)

    def _capture(self, running: Running) -> int:
        """The number that marks the slots' captured processor; 0 for none."""
        own = running.request.processor
        if own is None or not own.processor.allows_capture:
            return 0
        own.captured = self._in_use[running] = self._captured.take(own.processor)
        return own.captured.number


def _request_id(request: Request) -> int:
    return request.id if request.processor is None else request.processor.number_for(request.id)
