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

import torch

from weft.config import EngineConfig
from weft.core import FinishReason
from weft.engine.graphs import GraphKey, StepGraphs, bucket
from weft.engine.kv_cache import PageAllocator
from weft.engine.lifecycle import Request, Stage
from weft.engine.prefill import PrefillBuffers, PromptRow, prefill
from weft.engine.state import DecodeParts, SlotState
from weft.errors import CapacityError, GuideError, GuideStateError, InputError, RequestError
from weft.grammar.base import Matcher
from weft.guided.lane import GrammarLane
from weft.models.base import Model, PagedKV
from weft.runtime.buffers import PinnedRing
from weft.runtime.interface import Runtime
from weft.runtime.scope import FailureScope
from weft.spec.base import Drafter


class Engine:
    """Decodes many requests at once on one device, one iteration in flight.

    `config` is resolved (`EngineConfig.resolved`). Not thread-safe: one thread steps it.
    """

    def __init__(
        self,
        runtime: Runtime,
        model: Model,
        kv: PagedKV,
        drafter: Drafter | None,
        end_token_ids: list[int],
        config: EngineConfig,
        guided_drafts: bool,
    ) -> None:
        assert config.max_seq_len is not None and config.num_pages is not None
        self.config = config
        self.runtime = runtime
        self.num_iterations = 0
        self._max_seq_len = config.max_seq_len
        self._end_tokens = frozenset(end_token_ids)
        self._scope = FailureScope()
        self._stream = runtime.stream()
        num_drafts = drafter.num_draft_tokens if drafter is not None else 0
        self.lane = GrammarLane(
            runtime, config.max_batch, max(num_drafts, 1), model.config.vocab_size, end_token_ids
        )
        pages_per_slot = config.pages_for(config.max_seq_len, num_drafts)
        state = SlotState(
            config.max_batch, pages_per_slot, self.lane.drafts, self.lane.verified, runtime.device
        )
        self.parts = DecodeParts(model, kv, drafter, state)
        self.graphs = StepGraphs(runtime, self._stream, self.lane, self.parts, guided_drafts, config.capture)
        self._pages = PageAllocator(config.num_pages)
        self._prefill = PrefillBuffers(self.parts, config.prefill_chunk)
        self._slots_in: dict[int, PinnedRing] = {}
        self._sent: dict[int, list[int]] = {}  # what the device has as each batch size's slots
        self._verified_out = PinnedRing(runtime, self.lane.verified)
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
            request.move(Stage.RUNNING)
            request.slot, request.pages = self._free_slots.pop(), pages
            request.started = time.perf_counter()
            self._running.append(request)
            self._read_prompt(request)

    def _collect_guides(self) -> None:
        """Move requests whose guide is compiled to the queue; wait for one if there is nothing else to do."""
        compiling = {r.guide: r for r in self._waiting if r.stage is Stage.COMPILING and r.guide is not None}
        if compiling and len(compiling) == len(self._waiting) and not self._running:
            wait(compiling, return_when=FIRST_COMPLETED)
        for future, request in compiling.items():
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
        return self.config.pages_for(total, self.parts.num_drafts)

    def _read_prompt(self, request: Request) -> None:
        slot = request.slot
        guided = request.compiled is not None
        try:
            self._attach[slot] = request.compiled.matcher() if request.compiled is not None else None
            row = PromptRow(
                self.runtime, slot, request.prompt, request.pages, request.sampling.temperature, request.seed
            )
            snapshot = (lambda: self._push([slot])) if guided else None
            prefill(self._stream, self.lane, self.parts, self._prefill, row, snapshot)
            verified = self._read_verified()
        except Exception as error:
            self._end(request, "error", error)
            return
        request.output.stats.time_to_first_token_s = time.perf_counter() - request.created
        self._commit(request, verified)

    # -- decoding

    def _decode(self) -> None:
        rows = list(self._running)
        slots = [request.slot for request in rows]
        guided = any(request.compiled is not None for request in rows)
        key = GraphKey(bucket(len(rows), self.config.max_batch), guided)
        try:
            if not self.graphs.is_ready(key):
                self.graphs.prepare(key)
                self._sent.pop(key.batch, None)
            self._send_slots(slots, key.batch)
            if guided:
                self._push(slots)
            self.graphs.run(key)
            verified = self._read_verified()
        except Exception as error:
            for request in rows:
                self._end(request, "error", error)
            return
        self.num_iterations += 1
        for request in rows:
            stats = request.output.stats
            stats.iterations += 1
            if self.parts.num_drafts and stats.iterations > 1:
                stats.drafted_iterations += 1
            self._commit(request, verified)

    def _push(self, slots: list[int]) -> None:
        attach, self._attach = self._attach, {}
        self.lane.push(slots, attach)

    def _send_slots(self, slots: list[int], batch: int) -> None:
        padded = slots + [self.parts.state.dummy] * (batch - len(slots))
        if self._sent.get(batch) == padded:
            return
        if batch not in self._slots_in:
            self._slots_in[batch] = PinnedRing(self.runtime, self.graphs.buffers(batch).slots_B)
        self._slots_in[batch].send(self._stream, torch.tensor(padded))
        self._sent[batch] = padded

    def _read_verified(self) -> torch.Tensor:
        """[S+1, K+2] host copy of what the work issued so far verified; raises what that work raised."""
        verified = self._verified_out.receive(self._stream)
        self.runtime.check()
        return verified

    # -- results

    def _commit(self, request: Request, verified: torch.Tensor) -> None:
        """Append what the iteration committed to the request, up to its end."""
        output = request.output
        count = int(verified[request.slot, 0])
        tokens: list[int] = verified[request.slot, 1 : count + 2].tolist()
        room = min(request.sampling.max_tokens, self._max_seq_len - len(request.prompt)) - len(
            output.token_ids
        )
        ended = next((i for i, token in enumerate(tokens) if token in self._end_tokens), None)
        kept = tokens if ended is None else tokens[: ended + 1]
        error = self._guide_error(request, len(kept))
        if error is not None:
            self._end(request, "error", error)
            return
        if -1 in kept:
            self._end(
                request, "error", RequestError("the model's logits are all NaN or -inf at some position")
            )
            return
        kept = kept[:room]
        output.token_ids += kept
        output.drafted += [i < count for i in range(len(kept))]
        output.stats.accepted_drafts += min(count, len(kept))
        if ended is not None and len(kept) == ended + 1:
            self._end(request, "stop")
        elif len(kept) == room:
            self._end(request, "length")

    def _guide_error(self, request: Request, new_tokens: int) -> RequestError | None:
        """What the grammar says of the slot; what is about to be committed must have been accepted by the matcher."""
        if request.compiled is None:
            return None
        status, message = self.lane.state.status(request.slot)
        if status:
            return GuideStateError(message)
        accepted = self.lane.state.committed(request.slot)
        expected = len(request.output.token_ids) + new_tokens
        if accepted != expected:
            return GuideStateError(
                f"the grammar accepted {accepted} tokens of {expected}; nothing more is given out"
            )
        return None

    def _end(self, request: Request, reason: FinishReason, error: BaseException | None = None) -> None:
        """Finish a request and give back what it holds."""
        if request.stage is Stage.RUNNING:
            if request.compiled is not None:
                request.output.stats.guided_valid = reason == "stop" and self.lane.state.is_terminated(
                    request.slot
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
