"""Trial compiles in another process: what a grammar library would do with a guide, where it can be killed.

A library's memory, its native stack and mostly its time have no limit that holds inside it; it can't be stopped,
and what it compiled can't be handed over in reasonable time. So a stranger's guide is first compiled in a helper
process (`helper.py`), whichever library it goes to; what passes is compiled here, by the library that the trial settled
for, from the text that the trial prepared for it. The helper (`precheck.py`) has read the vocabulary once and makes a
child for each trial, which ends by itself when its time is over or its memory is used up. It ends with this process,
however that ends.
"""

from __future__ import annotations

import json
import pickle
import signal
import socket
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from weft.core.awake import AwakeTimer
from weft.errors import GuideError, UnavailableError
from weft.grammar.compile.helper import Helper, Helpers
from weft.grammar.compile.precheck import WAITING, Job
from weft.grammar.compile.prepared import Part, unpacked
from weft.grammar.guide import Guide
from weft.grammar.limits import CompileLimits
from weft.grammar.vocabulary.tokenizer import Vocabulary

HELPER_WAIT_S = 30.0
"""Longer no guide waits for the helper, where that starts or was lost."""
BEGIN_S = 5.0
"""Within so long a helper begins with a guide, on a machine that is busy; one that does not was stopped."""
ENDING_S = 1.0
"""The end of a child may come so late."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a guide that passed: what each guide within it is to be compiled to, by digest, and the bytes of
    memory that it holds, as far as that is known (0)."""

    parts: Mapping[str, Part]
    memory_bytes: int = 0


class _Died(Exception):
    """A child ended without an answer, of `library` where that is known, which is one `of` so many."""

    def __init__(self, words: str, library: str | None, of: int) -> None:
        super().__init__(words)
        self.library, self.of = library, of


class _Late(AwakeTimer):
    """Ends a connection that takes longer than it may."""

    def __init__(self, seconds: float, connection: socket.socket) -> None:
        super().__init__(seconds, self._end)
        self.has_rung = False
        self._connection = connection

    def _end(self) -> None:
        self.has_rung = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class _Lost(Exception):
    """The helper was lost, through no fault of the guide."""


class Trial:
    """A helper process that tries guides for one vocabulary with a backend of the registry, whose own bounds are
    `limits`.

    It starts at once and is ready seconds later; `wait` waits for that. `close` ends it.
    """

    def __init__(
        self, vocabulary: Vocabulary, backend: str = "auto", limits: CompileLimits | None = None
    ) -> None:
        self._helpers = Helpers(vocabulary, backend, limits or CompileLimits())
        self.close = weakref.finalize(self, self._helpers.close)

    def wait(self, until: float | None = None) -> None:
        """Returns when the helper takes guides. Raises `UnavailableError` where it does not until then, by the
        monotonic clock (None: `HELPER_WAIT_S` from now)."""
        self._helpers.get(until if until is not None else time.monotonic() + HELPER_WAIT_S)

    def run(
        self,
        guide: Guide,
        limits: CompileLimits,
        closes: bool = False,
        *,
        until: float | None = None,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> Verdict:
        """Compile a guide in another process, and with `closes` also work out how its answers end. Raises `GuideError`
        for one that does not compile, or not within half of `limits.time_s`, or that takes more memory, and
        `UnavailableError` where that can't be found out now. May be called by several threads at once.

        Where a library takes too long, or crashes, a backend that has another may choose that. Where the helper is
        lost, another one tries: `waiting()` is entered until that is there, at the latest at `until` (as for `wait`).
        """
        until = until if until is not None else time.monotonic() + HELPER_WAIT_S
        job = Job(guide, limits, limits.time_s / 2, closes)
        try:
            return self._try(job, until, waiting)
        except _Died as died:
            if died.library is None or died.of < 2:
                raise GuideError(str(died)) from None
            job = Job(guide, limits, limits.time_s / 4, closes, {died.library: str(died)})
        try:
            return self._try(job, until, waiting)
        except _Died as died:
            raise GuideError(str(died)) from None

    @property
    def pid(self) -> int:
        """The helper's process."""
        return self._helpers.pid

    def _try(self, job: Job, until: float, waiting: Callable[[], AbstractContextManager[object]]) -> Verdict:
        sent = pickle.dumps(job)
        helper = self._helpers.get(until)
        try:
            return self._ask(helper, sent, job)
        except _Lost:
            with waiting():
                helper = self._helpers.get(until)
        try:
            return self._ask(helper, sent, job)
        except _Lost as lost:
            raise UnavailableError(
                f"the process that tries guides of strangers {lost}; send the guide again later"
            ) from None

    def _ask(self, helper: Helper, sent: bytes, job: Job) -> Verdict:
        """The verdict of a child of the helper. Raises `GuideError` for a guide that does not pass, `_Died` where the
        child ended before, and `_Lost` where that is the helper's fault."""
        told, texts = self._said(helper, sent, job)
        if told.get("error") is not None:
            raise GuideError(told["error"])
        with suppress(KeyError, ValueError):  # it ended before, or while it sent the texts
            return Verdict(unpacked(told["parts"], texts), told["memory_bytes"])
        if self._helpers.is_closed:
            raise GuideError("the compiler was closed")
        if "parts" in told:  # it passed, and was ended while it sent them
            raise _Lost("was ended")
        if "signal" not in told:
            self._helpers.lose(helper)
            raise _Lost("was ended")
        _refuse_by_chance(told["signal"], told["cpu_s"], job)
        raise _Died(_why(told["signal"], job), told.get("trying"), told.get("of", 1))

    def _said(self, helper: Helper, sent: bytes, job: Job) -> tuple[dict[str, Any], bytes]:
        """What a child said before it ended, and was said of its end; and the texts that follow a verdict. Raises
        `_Lost` where nothing is said for too long: a child ends itself before, unless it was stopped, or the helper."""
        connection = helper.connect()
        if connection is None:
            self._helpers.lose(helper)
            raise _Lost("was ended")
        said = bytearray()
        with connection:
            late = _Late(BEGIN_S, connection)
            with late, suppress(OSError):
                said += connection.recv(1)
            if said and not late.has_rung:
                late = _Late(WAITING * job.time_s + ENDING_S, connection)
                with late, suppress(OSError):  # the child may end
                    if said == b"\n":  # it begins; else the helper says how it ended
                        said.clear()
                        connection.sendall(sent)
                        connection.shutdown(socket.SHUT_WR)
                    while part := connection.recv(1 << 20):
                        said += part
            if late.has_rung:
                self._helpers.lose(helper)
                raise _Lost("did not answer")
        told: dict[str, Any] = {}
        while "error" not in told and (end := said.find(b"\n")) >= 0:
            told |= json.loads(said[:end])
            del said[: end + 1]
        return told, bytes(said)


def _refuse_by_chance(number: int, cpu_s: float, job: Job) -> None:
    """Raise `UnavailableError` for a child that ended by no fault of its guide: it did not get the CPU, or somebody
    killed it."""
    if number == signal.SIGALRM and cpu_s < job.time_s / 2:
        raise UnavailableError(
            f"this machine is too busy to try the guide: it got {cpu_s:.1f} s of a CPU in {WAITING * job.time_s:g} s; "
            "send it again later"
        )
    if number == signal.SIGKILL:
        raise UnavailableError(
            "the guide's trial was killed from outside, as where this machine has no memory left; send the guide again "
            "later"
        )


def _why(number: int, job: Job) -> str:
    if number in (signal.SIGALRM, signal.SIGPROF):
        return (
            f"the guide did not compile in {job.time_s:g} s of trial, half of CompileLimits.time_s; simplify it"
            if not job.refused
            else f"the guide did not compile in {job.time_s:g} s of trial with another library; simplify it"
        )
    return (
        "the guide's trial compile ended without an answer: it took more than the "
        f"{job.limits.memory_bytes >> 20} MiB of CompileLimits.memory_bytes, or the grammar library crashed; "
        "simplify it"
    )
