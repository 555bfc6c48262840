"""How requests end: what they hold goes back to where it came from, and their watchers hear of it."""

from __future__ import annotations

from collections.abc import Sequence

from weft import registry
from weft.core import FinishReason, Output
from weft.engine.recording import Recorder
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.sequence import Request, Stage
from weft.errors import GuideError, InputError, RequestError
from weft.guided.state import GuidedState


class Finisher:
    """Ends requests, wherever they are. `count` have ended so far; `recorder` hears of those that failed."""

    def __init__(self, scheduler: Scheduler, state: GuidedState) -> None:
        self.count = 0
        self.recorder: Recorder | None = None
        self._scheduler, self._state = scheduler, state

    def fail(self, requests: Sequence[Request], error: BaseException) -> None:
        """End with an error those of `requests` that have not ended."""
        for request in requests:
            if not request.is_finished:
                self.finish(request, "error", error)

    def finish(self, request: Request, reason: FinishReason, error: BaseException | None = None) -> None:
        """End a request and, unless a batch in flight names it, give back what it holds."""
        error = _as_request_error(error, request.stage)
        running = self._scheduler.running_of(request)
        if running is not None and running.is_guided and running.search is None:
            is_whole = reason == "stop" and request.output.stopped_by is None
            request.output.stats.guided_valid = is_whole and self._state.is_terminated(running.slot)
        _note_best(request.output)
        self._scheduler.remove(request)
        if running is None or running.has_program:
            _note_program(request)
        self.count += 1
        request.finish(reason, error)
        if running is None or not running.in_flight:
            request.let_go()
        if error is not None and self.recorder is not None:
            self.recorder.failed(request)


def _as_request_error(error: BaseException | None, stage: Stage) -> RequestError | InputError | None:
    if error is None or isinstance(error, RequestError | InputError):
        return error
    kind = GuideError if stage is Stage.COMPILING else RequestError
    wrapped = kind(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _note_best(output: Output) -> None:
    """What the model gave on the way to the best answer of a search is the output's."""
    if output.hypotheses:
        best = output.hypotheses[0]
        output.generation_logits = best.generation_logits
        output.additional |= best.additional


def _note_program(request: Request) -> None:
    """What a program leaves, if the request's guide is one that has begun. Work in flight may be ahead of the
    answer."""
    if request.guide is None or request.guide.matcher is None:
        return
    report = registry.load("leaves", "program_report")(request.guide.matcher, len(request.output.token_ids))
    if report is not None:
        request.output.program_log, request.output.program_variables = report
