"""How requests end: what they hold goes back to where it came from, and their watchers hear of it."""

from __future__ import annotations

from collections import abc

from weft.core import FinishReason, Output
from weft.engine.features.recording import Recorder
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.sequence import Sequence, Stage
from weft.errors import GuideError, InputError, RequestError
from weft.guided.state import GuidedState


class Finisher:
    """Ends requests, wherever they are. `count` have ended so far; `recorder` hears of those that failed."""

    def __init__(self, scheduler: Scheduler, state: GuidedState) -> None:
        self.count = 0
        self.recorder: Recorder | None = None
        self._scheduler, self._state = scheduler, state

    def fail(self, sequences: abc.Sequence[Sequence], error: BaseException) -> None:
        """End with an error those of `requests` that have not ended."""
        for sequence in sequences:
            if not sequence.is_finished:
                self.finish(sequence, "error", error)

    def finish(self, sequence: Sequence, reason: FinishReason, error: BaseException | None = None) -> None:
        """End a request and, unless a batch in flight names it, give back what it holds."""
        error = _as_request_error(error, sequence.stage)
        had_slot = sequence.is_active
        if had_slot and sequence.is_guided and sequence.search is None:
            is_whole = reason == "stop" and sequence.output.stopped_by is None
            sequence.output.stats.guided_valid = is_whole and self._state.is_terminated(sequence.slot)
        _note_best(sequence.output)
        self._scheduler.remove(sequence)
        if not had_slot or sequence.starts_ahead:
            _note_report(sequence)
        self.count += 1
        sequence.finish(reason, error)
        if not sequence.in_flight:
            sequence.let_go()
        if error is not None and self.recorder is not None:
            self.recorder.failed(sequence)


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


def _note_report(sequence: Sequence) -> None:
    """Add the matcher's report to the output, if it has one (a program's log and variables)."""
    if sequence.guide is None or sequence.guide.matcher is None:
        return
    from weft.aici.guide import program_report  # few requests need it

    report = program_report(sequence.guide.matcher, len(sequence.output.token_ids))
    if report is not None:
        sequence.output.program_log, sequence.output.program_variables = report
