"""The parts of an answer (reasoning, text, function calls), and the writer that collects them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Reasoning:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True)
class Content:
    """A piece of the text for the user."""

    text: str


@dataclass(frozen=True)
class CallBegin:
    """The start of a call, with the function's name. `index` numbers the calls of an answer from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """A piece of a call's arguments. All pieces of a call, concatenated, are its JSON text, which may be cut off."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnd:
    """The end of a call, whose arguments are then complete. A call that was cut off has no `CallEnd`."""

    index: int


Part = Reasoning | Content | CallBegin | CallArguments | CallEnd


@dataclass
class Call:
    """One call. `arguments` is JSON text. It is incomplete if the answer was cut off (`is_whole` is false)."""

    name: str
    arguments: str = ""
    is_whole: bool = False


@dataclass
class Answer:
    """A parsed answer: its reasoning, text and calls."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Answer:
        """Join streamed parts, given in order, into an answer."""
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


class PartWriter:
    """Collects parts until `take`. Consecutive text of one kind becomes one part.

    Whitespace between two markers, or before the first, is layout and not part of the answer. So the writer holds back
    content after a marker while it is only whitespace. Further text releases it, and another marker drops it. At the
    end of the answer it is dropped if the answer has a call.
    """

    def __init__(self) -> None:
        self.num_calls = 0
        self._parts: list[Part] = []
        self._kind: type[Reasoning] | type[Content] | type[CallArguments] | None = None
        self._texts: list[str] = []
        self._blanks: list[str] | None = []

    def reasoning(self, text: str) -> None:
        """Add reasoning."""
        self._write(Reasoning, text)

    def content(self, text: str) -> None:
        """Add text for the user."""
        if self._blanks is not None:
            self._blanks.append(text)
            if not text or text.isspace():
                return
            text, self._blanks = "".join(self._blanks), None
        self._write(Content, text)

    def marker(self) -> None:
        """Record a marker: whitespace after it is held back."""
        self._blanks = []

    def begin_call(self, name: str) -> None:
        """Begin the next call, of the function `name`."""
        self._add(CallBegin(self.num_calls, name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """Add to the last call's arguments."""
        self._write(CallArguments, text)

    def end_call(self) -> None:
        """End the last call, whose arguments are complete."""
        self._add(CallEnd(self.num_calls - 1))

    def end(self) -> None:
        """End the answer, and write or drop the whitespace that is held back."""
        blanks, self._blanks = self._blanks, None
        if blanks and not self.num_calls:
            self._write(Content, "".join(blanks))

    def take(self) -> list[Part]:
        """Remove and return the parts collected so far."""
        self._settle()
        parts, self._parts = self._parts, []
        return parts

    def _write(self, kind: type[Reasoning] | type[Content] | type[CallArguments], text: str) -> None:
        if kind is not self._kind:
            self._settle()
            self._kind = kind
        self._texts.append(text)

    def _add(self, part: Part) -> None:
        self._settle()
        self._parts.append(part)

    def _settle(self) -> None:
        text, kind = "".join(self._texts), self._kind
        self._kind, self._texts = None, []
        if not text or kind is None:
            return
        if kind is CallArguments:
            self._parts.append(CallArguments(self.num_calls - 1, text))
        else:
            self._parts.append(Reasoning(text) if kind is Reasoning else Content(text))
