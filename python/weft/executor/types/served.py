"""Checks that weft supports all given settings. Runs when an executor is made and when a request is enqueued."""

from __future__ import annotations

from weft.errors import InputError
from weft.executor.types.parallel import ParallelConfig
from weft.executor.types.refused import REFUSED
from weft.executor.types.settings import Settings, given_refused


def check_served(settings: Settings) -> None:
    """Raise `InputError` for the first refused field that differs from its default. Checks nested settings too."""
    refused = given_refused(settings)
    for name, value in vars(settings).items():
        if name in refused:
            field = f"{type(settings).__name__}.{name}"
            raise InputError(f"{field} is not supported: {REFUSED[field]}")
        held = value if isinstance(value, list) else [value]
        for part in held if held and isinstance(held[0], Settings) else []:
            check_served(part)
    if isinstance(settings, ParallelConfig):
        settings.check_alone()
