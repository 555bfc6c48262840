"""Which files of the package Python enters, and how often a call goes from one into another."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import weft

ROOT = str(Path(weft.__file__).parent) + "/"

DEVICE = frozenset({("runtime/launching.py", "_run_device"), ("runtime/cpu.py", "CpuGraph.replay")})
"""What is below these is a device's work: a GPU does it, or a graph."""


@dataclass(frozen=True)
class Call:
    """A function of the package that was called, and the file of the one that called it (None: nobody of the
    package)."""

    file: str
    function: str
    caller: str | None


@dataclass
class FileTrace:
    """Calls that the host made, by thread, in their order."""

    calls: dict[int, list[Call]] = field(default_factory=dict)
    is_on: bool = False

    @property
    def files(self) -> set[str]:
        """The files that were entered, on all threads."""
        return {call.file for calls in self.calls.values() for call in calls}

    def between(self, file: str, function: str) -> list[list[Call]]:
        """The calls from each call of this function up to the next one, on its thread."""
        for calls in self.calls.values():
            at = [i for i, call in enumerate(calls) if (call.file, call.function) == (file, function)]
            if at:
                return [calls[begin:end] for begin, end in itertools.pairwise(at)]
        return []

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """What `sys.setprofile` takes."""
        if not self.is_on or event != "call":
            return
        place = _place(frame.f_code)
        if place is None or _is_of_device(frame):
            return
        call = Call(*place, _caller(frame))
        self.calls.setdefault(threading.get_ident(), []).append(call)


def changes(calls: list[Call]) -> int:
    """How many of the calls go from one file of the package into another."""
    return sum(call.caller is not None and call.caller != call.file for call in calls)


@contextmanager
def traced() -> Iterator[FileTrace]:
    """Traces this thread, and threads that are started inside, while `is_on`."""
    trace, before = FileTrace(), sys.getprofile()
    threading.setprofile(trace.profile)
    sys.setprofile(trace.profile)
    try:
        yield trace
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def _place(code: CodeType) -> tuple[str, str] | None:
    if not code.co_filename.startswith(ROOT):
        return None
    return code.co_filename.removeprefix(ROOT), code.co_qualname


def _caller(frame: FrameType) -> str | None:
    """The file of the nearest function of the package that called this one, perhaps through others."""
    outer = frame.f_back
    while outer is not None:
        place = _place(outer.f_code)
        if place is not None:
            return place[0]
        outer = outer.f_back
    return None


def _is_of_device(frame: FrameType) -> bool:
    outer: FrameType | None = frame
    while outer is not None:
        if _place(outer.f_code) in DEVICE:
            return True
        outer = outer.f_back
    return False
