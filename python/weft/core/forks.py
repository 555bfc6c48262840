"""Guards for objects with threads: after a fork, the child process has the objects but not their threads."""

from __future__ import annotations

import os

from weft.errors import WeftError


class Home:
    """The process in which an object was made. `what` names the object in the error."""

    def __init__(self, what: str, error: type[WeftError]) -> None:
        self._pid = os.getpid()
        self._what, self._error = what, error

    @property
    def is_here(self) -> bool:
        """Whether this process made the object."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raise the error in a forked process, where a wait for the object's thread would never end."""
        if not self.is_here:
            raise self._error(
                f"the {self._what} was made in process {self._pid}, and this one, {os.getpid()}, was forked from it: "
                "its threads are not here; make another after the fork"
            )
