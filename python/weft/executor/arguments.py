"""What the `Executor`'s callers may say in several ways. What is none of them raises `InputError`."""

from __future__ import annotations

import math
from datetime import timedelta

from weft.errors import InputError
from weft.executor.types import ExecutorConfig, ModelType


def settings_of(
    config: ExecutorConfig | ModelType | None, executor_config: ExecutorConfig | None
) -> ExecutorConfig:
    """The executor's own copy of its settings, which may stand after the type of the model."""
    if isinstance(config, ModelType):
        config.check()
        config = None
    given = [one for one in (config, executor_config) if one is not None]
    for one in given:
        if not isinstance(one, ExecutorConfig):
            raise InputError(
                f"config is {one!r}; give an ExecutorConfig, which may stand after ModelType.DECODER_ONLY"
            )
    if len(given) > 1:
        raise InputError("two configs are given; give one, after the model or after its ModelType")
    return given[0].snapshot() if given else ExecutorConfig()


def seconds_of(timeout: timedelta | float | None) -> float | None:
    """A timeout in seconds, 0 or more; None for one that never ends."""
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or math.isnan(seconds):
        raise InputError(f"timeout is {timeout!r}; it must be seconds, a timedelta, or None")
    return None if seconds == math.inf else max(float(seconds), 0.0)
