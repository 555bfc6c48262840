"""Writes the rows of a report as they are measured, with failures in place of rows that failed.

If a benchmark ends early, by a failure, a stall or a signal, its report has all rows that were measured before.
"""

from __future__ import annotations

import faulthandler
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft_bench.report import Report


@dataclass(frozen=True)
class Keeping:
    """The folder for reports in progress, and the time limit of a row in seconds. If a row takes longer, the process
    prints its stacks on stderr and exits. None turns either off."""

    folder: Path | None = None
    seconds: float | None = None


_keeping: ContextVar[Keeping] = ContextVar("keeping", default=Keeping())  # noqa: B039 (it is frozen)


@contextmanager
def keeping(folder: Path | None, seconds: float | None = None) -> Iterator[None]:
    """Write reports to `folder` after every row, and limit the time of a row, until the `with` block ends."""
    token = _keeping.set(Keeping(folder, seconds))
    try:
        yield
    finally:
        _keeping.reset(token)


class Rows(list[dict[str, Any]]):
    """The rows of the report `name`. Call `append` inside `trying`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.failures: list[dict[str, Any]] = []

    @contextmanager
    def trying(self, **what: object) -> Iterator[None]:
        """Measure a row, which `what` describes. An error becomes a failure in the report, except `InputError`,
        which means a wrong option. The report is written before and after."""
        described = {key: str(value) for key, value in what.items()}
        self._write(described)
        seconds = _keeping.get().seconds
        if seconds is not None:  # works even if the main thread hangs in a wait for the device
            faulthandler.dump_traceback_later(seconds, exit=True, file=2)
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            traceback.print_exc()
            self.failures.append({**described, "error": f"{type(error).__name__}: {error}"})
        finally:
            if seconds is not None:
                faulthandler.cancel_dump_traceback_later()
        self._write(None)

    def report(self, summary: dict[str, Any], name: str | None = None) -> Report:
        """Return the complete report."""
        return Report(name or self.name, list(self), summary, self.failures)

    def _write(self, measuring: dict[str, str] | None) -> None:
        folder = _keeping.get().folder
        if folder is not None:
            so_far: dict[str, Any] = {"unfinished": True}
            if measuring is not None:
                so_far["measuring"] = measuring
            self.report(so_far).write(folder)
