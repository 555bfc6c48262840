"""Requests given to an engine itself, for what `LLM` has no name for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft import LLM, Guide, SamplingParams
from weft.engine.request import Request


def make_request(
    llm: LLM, prompt: str | list[int], sampling: SamplingParams, guide: Guide | None = None, **fields: Any
) -> Request:
    """A request of `prompt`; `fields` are `Request`'s."""
    tokens = llm.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    compiled = llm.compile(guide) if guide is not None else None
    return Request(tokens, sampling, sampling.seed or 0, guide=compiled, **fields)


def run(llm: LLM, requests: Sequence[Request]) -> None:
    """Submit all of them, and step the engine until they are finished."""
    for request in requests:
        llm.engine.submit(request)
    while not all(request.is_finished for request in requests):
        llm.engine.step()
