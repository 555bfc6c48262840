"""What an answer is made of, as it is read: reasoning, text, and calls of functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Reasoning:
    """Text that the model thinks in."""

    text: str


@dataclass(frozen=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True)
class CallBegin:
    """A call begins. `index` counts the answer's calls from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """More of a call's arguments: all of its texts in a row are JSON."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnd:
    """A call's arguments are whole. One that was cut has no end."""

    index: int


Part = Reasoning | Content | CallBegin | CallArguments | CallEnd


@dataclass
class Call:
    """One call: `arguments` is JSON text; what came of it where the answer was cut (`is_whole` is false)."""

    name: str
    arguments: str = ""
    is_whole: bool = False


@dataclass
class Answer:
    """A whole answer."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Answer:
        """The answer that parts come to, in their order."""
        reasoning, content, answer = [], [], cls()
        arguments: list[list[str]] = []
        for part in parts:
            if isinstance(part, Reasoning):
                reasoning.append(part.text)
            elif isinstance(part, Content):
                content.append(part.text)
            elif isinstance(part, CallBegin):
                answer.calls.append(Call(part.name))
                arguments.append([])
            elif isinstance(part, CallArguments):
                arguments[part.index].append(part.text)
            else:
                answer.calls[part.index].is_whole = True
        for call, texts in zip(answer.calls, arguments, strict=True):
            call.arguments = "".join(texts)
        answer.reasoning, answer.content = "".join(reasoning), "".join(content)
        return answer
