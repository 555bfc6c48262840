"""Splits a streaming answer into reasoning, text and function calls."""

from weft.parsing.parser import AnswerParser
from weft.parsing.parts import (
    Answer,
    Call,
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Part,
    Reasoning,
)
from weft.tokenizer.formats import reasoning_markers, starts_inside

__all__ = [
    "Answer",
    "AnswerParser",
    "Call",
    "CallArguments",
    "CallBegin",
    "CallEnd",
    "Content",
    "Part",
    "Reasoning",
    "reasoning_markers",
    "starts_inside",
]


def __dir__() -> list[str]:
    return list(__all__)
