"""Collects the faults of a server's configuration, so that all of them are reported at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from weft.errors import InputError, WeftError


class Faults(InputError):
    """Everything that is wrong with a server's configuration: `faults` has one line for each fault."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


class FaultList:
    """Collects the faults of several steps, so that all of them are reported together."""

    def __init__(self) -> None:
        self._faults: list[str] = []

    @contextmanager
    def noted(self, place: str = "") -> Iterator[None]:
        """A context that adds a `WeftError` to the list, after the text `place`, instead of raising it."""
        try:
            yield
        except WeftError as error:
            self.add(error, place)

    def add(self, error: WeftError, place: str = "") -> None:
        """Add an error, or each of several `Faults`, after the text `place`."""
        faults = error.faults if isinstance(error, Faults) else (str(error),)
        self._faults += [place + fault for fault in faults]

    @property
    def error(self) -> Faults:
        """All faults as one error."""
        return Faults(self._faults)

    def check(self) -> None:
        """Raise `error` if there are any faults."""
        if self._faults:
            raise self.error
