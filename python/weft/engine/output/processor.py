"""Reading what turns launched: what was committed goes to requests, what failed ends those who were in it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from weft.engine.device.results import ResultRings, StepResults
from weft.engine.output.commit import commit, commit_plainly
from weft.engine.output.splice import commit_splice
from weft.engine.request import Request, Stage
from weft.engine.scheduling.finish import Ends
from weft.engine.scheduling.running import Residents
from weft.engine.stats import TurnRecord
from weft.engine.step.in_flight import Flight
from weft.engine.step.runner import Launcher
from weft.guided.state import GuidedState, Splice
from weft.runtime.interface import Runtime


class Landing:
    """What is in flight, the oldest first: at most two. `rewritten` are those whose text is to be read again; they may
    have ended since."""

    def __init__(
        self,
        runtime: Runtime,
        rings: ResultRings,
        state: GuidedState,
        residents: Residents,
        launcher: Launcher,
        ends: Ends,
        end_tokens: frozenset[int],
    ) -> None:
        self.flights: deque[Flight] = deque()
        self.rewritten: list[Request] = []
        self._runtime, self._rings, self._state = runtime, rings, state
        self._residents, self._launcher, self._ends = residents, launcher, ends
        self._end_tokens = end_tokens
        self._last_read = 0.0

    def depart(self, flight: Flight) -> None:
        """A flight was launched; its results are under way."""
        flight.results = self._rings.start(
            flight.wants_logprobs, flight.gathers, drafts=flight.num_drafts > 0
        )
        self.flights.append(flight)

    def land(self, turn: TurnRecord) -> None:
        """Read all that is in flight."""
        while self.flights:
            self.read(turn)

    def read(self, turn: TurnRecord) -> None:
        """Wait for the oldest flight, and hand out what it committed."""
        flight = self.flights.popleft()
        assert flight.results is not None
        waiting_since = time.perf_counter()
        try:
            results = flight.results.wait()
            self._runtime.check()
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
            if request.stage is not Stage.FINISHED and not request.is_rewritten:
                self._take(request, results, turn)
        for request in flight.reading:
            if not request.is_finished and request.row is not None and request.row.error is not None:
                self._ends.end(request, "error", request.row.error)
        self._disembark(flight)

    def _observe(self, flight: Flight, results: StepResults, seconds: float) -> None:
        """Tell whoever decides about masked drafts what the iteration cost and gave."""
        plan = flight.plan
        if plan is None or not plan.guided or not plan.num_drafts:
            return
        rows = [r for r in flight.rows if r.compiled is not None and not r.is_finished]
        committed = sum(results.count(request.slot) + 1 for request in rows)
        kind = (plan.batch, plan.num_drafts)
        self._launcher.guidance.observe(kind, flight.masks_drafts, seconds, committed)

    def _take_first(self, request: Request, results: StepResults, turn: TurnRecord) -> None:
        assert request.row is not None
        if request.row.error is not None:
            self._ends.end(request, "error", request.row.error)
            return
        if not request.resumed_at:
            request.output.stats.reused_tokens = request.row.first
        self._commit(request, results, turn)

    def _take(self, request: Request, results: StepResults, turn: TurnRecord) -> None:
        stats = request.output.stats
        stats.iterations += 1
        iterations, tokens = stats.drafted_iterations, stats.drafted_tokens
        proposed, accepted = stats.proposed_drafts, stats.accepted_drafts
        self._commit(request, results, turn)
        turn.speculating += stats.drafted_iterations - iterations
        turn.speculated_tokens += stats.drafted_tokens - tokens
        turn.proposed_drafts += stats.proposed_drafts - proposed
        turn.accepted_drafts += stats.accepted_drafts - accepted

    def _commit(self, request: Request, results: StepResults, turn: TurnRecord) -> None:
        """Append what the iteration committed to the request, and end it where it ends."""
        grammar = self._state if request.compiled is not None else None
        output, reason = request.output, None
        before = len(output.token_ids)
        try:
            splice = self._splice_of(request, results) if grammar is not None and grammar.num_failed else None
            if splice is not None:
                reason = commit_splice(request, results, splice, self._end_tokens)
                self.rewritten += [request] if request.is_rewritten else []
            elif not (
                request.is_plain
                and commit_plainly(
                    request,
                    results.tokens(request.slot),
                    results.proposed(request.slot),
                    self._end_tokens,
                    grammar,
                )
            ):
                reason = commit(request, results, request.room, self._end_tokens, grammar)
        except Exception as error:  # whatever it is, the others' tokens are committed on the device
            self._ends.end(request, "error", error)
            return
        num_tokens = len(output.token_ids)
        turn.generated_tokens += num_tokens - before
        if num_tokens > before:
            output.stats.note_tokens(self._last_read, turn.number)
        if num_tokens >= request.stores_at and not request.is_rewritten:
            self._residents.store(request)
        if reason is not None:
            self._ends.end(request, reason)
        elif request.is_watched and request.on_progress is not None:
            request.on_progress(request)

    def _splice_of(self, request: Request, results: StepResults) -> Splice | None:
        """Where the iteration is the one in which the request's matcher wrote the end of its text anew."""
        splice = self._state.splice(request.slot)
        behind = len(request.output.token_ids) - request.resumed_at
        return splice if splice and splice.committed <= behind + results.count(request.slot) + 1 else None

    def _disembark(self, flight: Flight) -> None:
        """The flight is over: what waited for it is given back."""
        for request in flight.end():
            self._residents.give_back(request)

    def _aboard(self) -> list[Request]:
        """Who is in flight; a request in two flights stands there twice."""
        return [request for flight in self.flights for request in flight.requests]

    def _fail_flight(self, flight: Flight, error: BaseException) -> None:
        """What was launched together fails together, and with it what later work can't go on without."""
        self._ends.fail(flight.requests, error)
        try:
            self._runtime.synchronize()
        except Exception as later:
            self._ends.fail(self._aboard(), later)
        self._launcher.drop_snapshots()
        self._disembark(flight)

    def fail_launch(self, requests: Sequence[Request], error: BaseException, turn: TurnRecord) -> None:
        """Who was to be launched fails; and what is in flight, since a launch also raises what failed there."""
        self._ends.fail(self._aboard(), error)
        self._ends.fail(requests, error)
        self.land(turn)
        self._launcher.drop_snapshots()

    def check(self) -> None:
        """Hear of what failed in flight before anything else is launched, which would be blamed for it."""
        try:
            self._runtime.check()
        except Exception as error:
            self._ends.fail(self._aboard(), error)
