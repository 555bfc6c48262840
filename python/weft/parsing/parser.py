"""`AnswerParser`: splits a streaming answer into reasoning, user text and function calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.errors import GuideError
from weft.grammar import Guide
from weft.grammar.tag_forms import tag_of
from weft.parsing.formats import FormatReader, Loop, Marker, Nodes, functions_of, reasoning_until
from weft.parsing.markers import spelled
from weft.parsing.parts import Answer, Part, PartWriter
from weft.parsing.states import Searching, States
from weft.tokenizer.formats import CHANNELS, reasoning_markers, starts_inside

MESSAGES: dict[str, Any] = {
    "type": "tags_with_separator",
    "separator": "<|start|>assistant",
    "tags": [
        {
            "begin": f"<|channel|>{channel}<|message|>",
            "content": {"type": "any_text"},
            "end": ["<|end|>", "<|return|>"],
        }
        for channel in ("analysis", "commentary", "final")
    ],
}
"""The format of gpt-oss's answers without calls."""


class AnswerParser:
    """Splits the text of one answer into reasoning, user text and function calls.

    The text may come in pieces of any size; the joined parts do not depend on the sizes. Text that may be the beginning
    of a marker is held back until more text decides. Parsing never raises. Text that does not follow the format becomes
    user text, and a cut answer gives the parts up to the cut."""

    def __init__(self, nodes: Nodes) -> None:
        self._states = States()
        self._state = self._states.of(nodes)
        self._writer = PartWriter()
        self._text, self._at = "", 0

    @classmethod
    def of_tools(cls, tag: Guide | str | dict[str, Any], tools: Sequence[Any]) -> AnswerParser:
        """A parser for answers under a structural tag that lets the model call `tools`.

        `tag` is a guide of `Guide.tools` with a known style (`Guide.of_model`), or the tag as JSON text or data. The
        parser also works for unguided answers that follow the format. Raises `GuideError` for a guide of another kind,
        and for a tag with an unknown format or with calls of other functions.
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
        """A parser for answers without calls: reasoning up to `end`, then text.

        With `starts_inside` the prompt has already opened the reasoning. Otherwise it starts only at `begin`. The
        markers of gpt-oss (`weft.tokenizer.formats.CHANNELS`) stand for all its channels. Raises `GuideError` for a
        marker that is only whitespace.
        """
        ends = [end.rstrip()]
        if (begin, end) == CHANNELS:
            if not starts_inside:
                return cls(FormatReader(()).nodes(MESSAGES, ()))
            ends = [f"<|end|>{MESSAGES['separator']}{end}", end]
        if not end.strip() or (begin is not None and not begin.strip()):
            raise GuideError("a marker of reasoning needs a character that is no blank")
        reasoning = reasoning_until(ends, ())
        opens: Nodes = (Marker(spelled(begin), reasoning),) if begin is not None else ()
        return cls((*opens, *(reasoning if starts_inside else (Loop(True, (), ()),))))

    @classmethod
    def of_template(
        cls, chat_template: str | Mapping[str, str] | None, prompt: str, *, is_guided: bool = False
    ) -> AnswerParser:
        """A parser for answers without calls of a model with this chat template, after the text `prompt`.

        The template shows the markers of reasoning (`reasoning_markers`), and the prompt whether it has opened or
        closed the reasoning. `is_guided`: the answer's guide begins after the end marker (`Guide.after`). Without
        reasoning, all of the answer is content.
        """
        markers = reasoning_markers(chat_template)
        if markers is None or prompt.rstrip().endswith(markers[1]):
            return cls((Loop(True, (), ()),))
        return cls.of_reasoning(*markers, starts_inside=is_guided or starts_inside(prompt, *markers))

    def read(self, text: str) -> Answer:
        """Parse a whole answer."""
        return Answer.of([*self.feed(text), *self.finish()])

    def feed(self, text: str) -> list[Part]:
        """Add text. Returns the parts that are now certain."""
        return self._advance(text, False)

    def finish(self, *, is_cut: bool = False) -> list[Part]:
        """End the answer. Returns the remaining parts. `is_cut`: the answer was cut off. A call whose name is not
        complete is then dropped, instead of becoming text."""
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
