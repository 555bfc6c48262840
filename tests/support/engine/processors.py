"""Logits processors that change the model's choices, on the host and captured, and the answers with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from support.engine.requests import make_request, run
from weft import LLM, SamplingParams
from weft.core.logits_processors import LogitsProcessor, ProcessorRows

GREEDY = SamplingParams(max_tokens=16)


def one(function: Callable[..., Any], **fields: Any) -> LogitsProcessor:
    """Make a processor with the name 'ours'."""
    return LogitsProcessor("ours", function, **fields)


def answers(
    llm: LLM, prompts: list[str], processor: LogitsProcessor | None, **fields: Any
) -> list[list[int]]:
    """The tokens of the answers to the first three prompts. The middle one runs without the processor."""
    sampling = fields.pop("sampling", GREEDY)
    requests = [
        make_request(llm, prompt, sampling, processor=processor if i != 1 else None, **fields)
        for i, prompt in enumerate(prompts[:3])
    ]
    run(llm, requests)
    for request in requests:
        assert request.output.error is None
    return [request.output.token_ids for request in requests]


def wander(request_id: int, logits: Tensor, tokens: list[list[int]], stream: object, client: object) -> None:
    """Favour tokens that depend on the last two tokens of the text, so that a wrong text changes the next token."""
    for token in wanted(*tokens[0][-2:]):
        logits[..., token] += 25.0


def wanted(before: int, last: int) -> list[int]:
    """The tokens that `wander` favours after two tokens."""
    return [(before * 31 + last * 17 + step) % 300 + 20 for step in (0, 5, 11)]


class Steer:
    """A device processor that favours a token that depends on the token before each position."""

    allows_capture = True

    def __call__(self, rows: ProcessorRows, logits_BTV: Tensor, stream: object) -> None:
        favourite_BT1 = ((rows.tokens.clamp(min=0) * 17) % 300 + 20)[..., None]
        logits_BTV.scatter_add_(2, favourite_BT1, torch.full_like(favourite_BT1, 25, dtype=logits_BTV.dtype))


def steer(request_id: int, logits: Tensor, tokens: list[list[int]], stream: object, client: object) -> None:
    """`Steer` as a host processor."""
    logits[..., tokens[0][-1] * 17 % 300 + 20] += 25.0
