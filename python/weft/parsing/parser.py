"""Reads an answer while it streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.errors import GuideError
from weft.grammar import Guide
from weft.grammar.tag_forms import tag_of
from weft.parsing.formats import FormatReader, reasoning_until
from weft.parsing.functions import functions_of
from weft.parsing.nodes import Loop, Marker, Nodes
from weft.parsing.parts import Answer, Part
from weft.parsing.spelling import spelled
from weft.parsing.states import Searching, States
from weft.parsing.writer import PartWriter


class AnswerParser:
    """Splits the text of one answer into reasoning, text for the user, and calls of functions.

    Text may come in pieces of any size; the parts in a row are the same. What may be the beginning of a marker waits
    for what follows. Nothing raises: what does not obey the format is text, and what is cut is as far as it came.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._states = States()
        self._state = self._states.of(nodes)
        self._writer = PartWriter()
        self._text, self._at = "", 0

    @classmethod
    def of_tools(cls, tag: Guide | str | dict[str, Any], tools: Sequence[Any]) -> AnswerParser:
        """For answers under a structural tag that lets the model call `tools`: a guide of `Guide.tools`, or the tag as
        JSON text or data. Answers without the guide are read as well, as far as they keep to its format. Raises
        `GuideError` for a tag that it can't read, or that calls other functions.
        """
        guide = tag if isinstance(tag, Guide) else Guide.structural_tag(tag)
        if guide.kind != "structural_tag":
            raise GuideError(
                f"calls stand under a structural tag, not under a guide of the kind {guide.kind}"
            )
        form = tag_of(guide.source)["format"]
        return cls(FormatReader(functions_of(tools)).nodes(form, ()))

    @classmethod
    def of_reasoning(cls, begin: str | None, end: str, *, starts_inside: bool) -> AnswerParser:
        """For answers without calls: reasoning up to `end`, then text. The reasoning begins with the answer if the
        prompt has begun it (`starts_inside`), else with `begin` if the answer does.
        """
        if not end.strip() or (begin is not None and not begin.strip()):
            raise GuideError("a marker of reasoning needs a character that is no blank")
        reasoning = reasoning_until([end.rstrip()], ())
        opens: Nodes = (Marker(spelled(begin), reasoning),) if begin is not None else ()
        return cls((*opens, *(reasoning if starts_inside else (Loop(True, (), ()),))))

    def read(self, text: str) -> Answer:
        """The answer that a whole text is."""
        return Answer.of([*self.feed(text), *self.finish()])

    def feed(self, text: str) -> list[Part]:
        """What more text settles."""
        return self._advance(text, False)

    def finish(self, *, is_cut: bool = False) -> list[Part]:
        """The rest, at the end of the answer. Of one that `is_cut` where a call has begun and has no name yet, that
        beginning is left out."""
        held, state = self._text[self._at :], self._state
        if is_cut and isinstance(state, Searching) and state.has_begun_entry(held, self._writer.num_calls):
            self._at = len(self._text)
        parts = self._advance("", True)
        self._writer.end()
        return [*parts, *self._writer.take()]

    def _advance(self, text: str, is_end: bool) -> list[Part]:
        self._text, at = self._text[self._at :] + text, 0
        while True:
            at, nodes = self._state.read(self._text, at, is_end, self._writer)
            if nodes is None:
                break
            self._state = self._states.of(nodes)
        self._at = at
        return self._writer.take()
