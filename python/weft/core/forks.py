"""Processes: a guard for objects whose threads a fork does not copy, and the first code of helper processes."""

from __future__ import annotations

import os

from weft.errors import WeftError

IGNORE_SIGNALS = (
    "import signal; [signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)]; "
)
"""The first code of a helper process. Ctrl-C and systemd send their signal to all processes of a server, which still
needs its helpers for the requests in flight. A helper ends when the server closes its pipe or kills it."""


_process = os.getpid()  # a call of the system in every step would be slow


def _note_fork() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_note_fork)


class Home:
    """The process in which an object was made. `what` names the object in the error."""

    def __init__(self, what: str, error: type[WeftError]) -> None:
        self._pid = _process
        self._what, self._error = what, error

    @property
    def is_here(self) -> bool:
        """Whether this process made the object."""
        return _process == self._pid

    def check(self) -> None:
        """Raise the error in a forked process, where a wait for the object's thread would never end."""
        if _process != self._pid:
            raise self._error(
                f"the {self._what} was made in process {self._pid}, and this one, {_process}, was forked from it: "
                "its threads are not here; make another after the fork"
            )
