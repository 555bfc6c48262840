"""Logits post-processors that change nothing, in every form that an executor takes, and look at what they are given."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from weft.core.logits_processors import ProcessorRows
from weft.executor import LogitsPostProcessorConfig, Request

Function = Callable[..., Tensor | None]


def watching(prompt: Sequence[int], client_id: int) -> Function:
    """For one request: what it is given is that request's."""

    def watch(_: int, logits: Tensor, tokens: list[list[int]], stream: object, client: int) -> Tensor | None:
        assert client == client_id and tokens[0][: len(prompt)] == list(prompt)
        assert logits.shape[:2] == (1, 1) and bool(logits.isfinite().all())
        return logits.clone() if len(tokens[0]) % 2 else None

    return watch


def shared(
    _: int, logits: Tensor, tokens: list[list[int]], stream: object, client: int | None
) -> Tensor | None:
    """Changes and changes back."""
    logits += 1
    logits -= 1
    return None


def batched(
    ids: list[int],
    logits: list[Tensor],
    tokens: list[list[list[int]]],
    stream: object,
    clients: list[int | None],
) -> None:
    """One entry for each position of all requests that name it."""
    assert len(ids) == len(logits) == len(tokens) == len(clients) > 0


def captured(rows: ProcessorRows, logits_BTV: Tensor, stream: object) -> None:
    """A device function."""
    logits_BTV.mul_(1.0)


captured.allows_capture = True  # type: ignore[attr-defined]

CONFIG = LogitsPostProcessorConfig({"shared": shared, "captured": captured}, batched)


def draw_processor(rng: random.Random, prompt: Sequence[int], client_id: int) -> dict[str, Any]:
    """Fields of a request: none, most of the time."""
    if rng.random() < 0.88:
        return {}
    if rng.random() < 0.4:
        return {"logits_post_processor": watching(prompt, client_id)}
    names = ("shared", "captured", "captured", Request.BATCHED_POST_PROCESSOR_NAME)
    return {"logits_post_processor_name": rng.choice(names)}
