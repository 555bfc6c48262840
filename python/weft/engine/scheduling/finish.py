"""How requests end: what they hold goes back to where it came from, and whoever waits hears of it."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core import FinishReason
from weft.engine.beam.request import BeamRequest
from weft.engine.beam.scheduling import BeamTurns
from weft.engine.request import Request, Stage
from weft.engine.scheduling.running import Residents
from weft.engine.scheduling.waiting import Arrivals
from weft.errors import GuideError, InputError, RequestError
from weft.grammar.wasm.report import program_report
from weft.guided.state import GuidedState


class Ends:
    """Ends requests, wherever they are. `count` have ended so far."""

    def __init__(
        self, arrivals: Arrivals, residents: Residents, beams: BeamTurns | None, state: GuidedState
    ) -> None:
        self.count = 0
        self._arrivals, self._residents, self._beams, self._state = arrivals, residents, beams, state

    def home(self, request: Request) -> Residents | BeamTurns:
        """Where a request takes what it holds from."""
        if isinstance(request, BeamRequest):
            assert self._beams is not None
            return self._beams
        return self._residents

    def fail(self, requests: Sequence[Request], error: BaseException) -> None:
        """End with an error whoever of `requests` has not ended."""
        for request in requests:
            if not request.is_finished:
                self.end(request, "error", error)

    def end(self, request: Request, reason: FinishReason, error: BaseException | None = None) -> None:
        """Finish a request and, unless work in flight names it, give back what it holds."""
        self._arrivals.forget(request)
        if error is not None and not isinstance(error, RequestError | InputError):
            kind = GuideError if request.stage is Stage.COMPILING else RequestError
            wrapped = kind(f"{type(error).__name__}: {error}")
            wrapped.__cause__ = error
            error = wrapped
        if request.is_active:
            if request.compiled is not None and not isinstance(request, BeamRequest):
                request.output.stats.guided_valid = (
                    reason == "stop"
                    and request.output.stopped_by is None
                    and self._state.is_terminated(request.slot)
                )
            self.home(request).leave(request)
        _note_program(request)
        self.count += 1
        request.finish(reason, error)
        if not request.in_flight:
            request.let_go()
        if error is not None and self._residents.recorder is not None:
            self._residents.recorder.failed(request)


def _note_program(request: Request) -> None:
    """What a program leaves, if the request's guide is one that has begun. Work in flight may be ahead of the
    answer."""
    if request.matcher is None:
        return
    report = program_report(request.matcher, len(request.output.token_ids))
    if report is not None:
        request.output.program_log, request.output.program_variables = report
