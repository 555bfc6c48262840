"""A model's thinking: where it is in the prompt, and what the guide does with it."""

from __future__ import annotations

from typing import Literal

from weft.grammar.guide import Guide
from weft.parsing import AnswerParser, starts_inside
from weft.server.errors import ApiError

Thinking = Literal["none", "inside", "closed", "open"]
"""The model does not think; the prompt has begun its thinking; the prompt has ended it; the model may begin it."""


def thinking_of(markers: tuple[str, str] | None, prompt: str) -> Thinking:
    """What a prompt leaves the model to do."""
    if markers is None:
        return "none"
    if starts_inside(prompt, *markers):
        return "inside"
    return "closed" if prompt.rstrip().endswith(markers[1]) else "open"


def guide_after(
    guide: Guide | None, thinking: Thinking, markers: tuple[str, str] | None, budget: int | None
) -> Guide | None:
    """The guide begins after the thinking, which may have `budget` tokens."""
    thinks = markers is not None and thinking in ("inside", "open")
    if budget is not None and not (thinks and guide is not None):
        raise ApiError(
            "thinking_token_budget bounds the thinking before a guide, of a model that thinks; give a guide, such as "
            "response_format",
            param="thinking_token_budget",
        )
    if guide is None or markers is None or not thinks:
        return guide
    return Guide.after(markers[1], guide, max_free_tokens=budget)


def reasoning_parser(
    thinking: Thinking, markers: tuple[str, str] | None, *, is_guided: bool
) -> AnswerParser | None:
    """Splits an answer without calls; None where all of it is content. A guide begins after the thinking, so that what
    comes before it is thinking also where the model did not open it."""
    if markers is None or thinking in ("none", "closed"):
        return None
    begin, end = markers
    return AnswerParser.of_reasoning(begin, end, starts_inside=thinking == "inside" or is_guided)
