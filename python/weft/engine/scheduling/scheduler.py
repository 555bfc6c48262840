"""Who is served: what can be at all, who gets in, and who is put back among those who wait."""

from __future__ import annotations

import time

from weft.config import EngineConfig, Speculation
from weft.engine.beam.scheduling import check_beams, fits_width
from weft.engine.device.state import DecodeParts
from weft.engine.request import Request, Stage
from weft.engine.scheduling.draft_limits import check_drafts
from weft.engine.scheduling.finish import Ends
from weft.engine.scheduling.running import Residents
from weft.engine.scheduling.waiting import Arrivals
from weft.engine.stats import TurnRecord
from weft.errors import CapacityError, InputError


def check_length(num_tokens: int, max_seq_len: int) -> None:
    """Raise `CapacityError` for a prompt that leaves no room for an answer."""
    if num_tokens + 1 > max_seq_len:
        raise CapacityError(
            f"the prompt has {num_tokens} tokens, but max_seq_len is {max_seq_len} (prompt and answer); shorten the "
            "prompt or raise max_seq_len (of an executor: ExecutorConfig.max_seq_len)"
        )


class Admission:
    """Gives those who wait what they need to be served, in their order, and takes it back where others need it more."""

    def __init__(
        self,
        config: EngineConfig,
        speculation: Speculation,
        parts: DecodeParts,
        arrivals: Arrivals,
        residents: Residents,
        ends: Ends,
    ) -> None:
        self._config, self._speculation, self._parts = config, speculation, parts
        self._arrivals, self._residents, self._ends = arrivals, residents, ends

    def check(self, request: Request) -> None:
        """Raise `InputError` or `CapacityError` for a request that can never be served."""
        check_drafts(request, self._speculation, self._parts.model.config.vocab_size)
        if request.sampling.on_length == "close" and request.guide is None and request.compiled is None:
            raise InputError('on_length is "close", which needs a guide: without one no answer has an end')
        self._parts.outputs.check(request.gather)
        check_beams(request, self._config.max_beam_width)
        longest, num_pages = self._config.max_seq_len, self._residents.kv.num_pages - 1
        assert longest is not None
        if not request.prompt:
            raise InputError("the prompt is empty; give at least one token")
        check_length(len(request.prompt), longest)
        pages = self._ends.home(request).pages_needed(request)
        if pages > num_pages:
            raise CapacityError(
                f"the request needs {pages} pages, but there are {num_pages}; lower max_tokens or raise "
                "EngineConfig.num_pages (of an executor: KvCacheConfig.max_tokens, to "
                f"{pages * self._config.page_size})"
            )

    def admit(self, turn: TurnRecord, budget: int) -> None:
        """Give slots and pages to those who wait, in their order, while there is something to read for them."""
        active = self._residents.active
        if (
            not self._residents.free_slots
            or turn.paused
            or (self._config.policy == "static_batch" and active)
        ):
            return
        while len(self._arrivals.queue):
            request = self._arrivals.queue.first
            if not self._can_read(request, budget) or not fits_width(request, active):
                return
            if not self._ends.home(request).take(request):
                return
            self._arrivals.admit(request)
            if not request.paused_at:  # who was preempted is not new
                turn.new_active += 1
                turn.new_active_queue_s += time.perf_counter() - request.output.stats.submitted_at
            try:
                self._ends.home(request).open(request)
            except Exception as error:
                self._ends.end(request, "error", error)

    def _can_read(self, request: Request, budget: int) -> bool:
        """Whether one more prompt should be begun, where `budget` tokens may be read in this turn."""
        config = self._config
        if config.policy == "static_batch":  # who does not come now waits until all the others are done
            return True
        if config.chunked and config.chunking == "equal_progress":
            return budget > 0
        unread = sum(r.row.remaining for r in self._residents.active if r.row is not None)
        return unread < budget and (config.chunked or unread + request.num_tokens <= budget)

    def preempt(self, request: Request, turn: TurnRecord) -> None:
        """Take slot and pages back from a request that nothing in flight names. Its text and its matcher stay."""
        assert not request.in_flight
        turn.paused.append(request.id)
        self._residents.store(request)
        self._put_back(request)

    def read_again(self, rewritten: list[Request]) -> list[Request]:
        """Queue those whose text was written anew, and who have not ended since; who has to wait for that, because work
        in flight names him."""
        waiting = []
        for request in rewritten:
            if request.is_finished:
                continue
            if request.in_flight:
                waiting.append(request)
                continue
            request.is_rewritten = False
            self._put_back(request)
        return waiting

    def _put_back(self, request: Request) -> None:
        self._residents.leave(request)
        request.move(Stage.QUEUED)
        self._arrivals.add_again(request)
