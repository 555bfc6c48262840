"""The states of the parser. In each state, one of several nodes of the format may come next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from weft.parsing.formats import Arguments, Blanks, Expected, Loop, Marker, Node, Nodes, Text
from weft.parsing.json_text import BLANKS, JsonText
from weft.parsing.markers import MAX_BLANKS, OPEN, Found, Markers, Spelling
from weft.parsing.parts import PartWriter
from weft.parsing.xml import XmlArguments


class State(Protocol):
    """A state of the parser. It reads text, and writes the parts that are certain."""

    def read(self, text: str, at: int, is_end: bool, writer: PartWriter) -> tuple[int, Nodes | None]:
        """Read from position `at`. Returns the new position, and the nodes of the next state. The nodes are None if the
        state needs more text, or if the answer ends here."""


class States:
    """The states of one format, created on first use."""

    def __init__(self) -> None:
        self._made: dict[Nodes, State] = {}

    def of(self, nodes: Nodes) -> State:
        """The state in which one of `nodes` comes next."""
        # Not shared: it holds the progress of one call.
        if nodes and isinstance(nodes[0], Arguments):
            return Calling(nodes[0])
        if nodes not in self._made:
            self._made[nodes] = self._state(nodes)
        return self._made[nodes]

    def _state(self, nodes: Nodes) -> State:
        if len(nodes) == 1 and isinstance(nodes[0], Blanks):
            return Layout(nodes[0])
        expected = [node for node in nodes if isinstance(node, Expected)]
        return Expecting(expected) if expected and len(expected) == len(nodes) else Searching(nodes)


class Searching:
    """The state in text that may contain markers."""

    def __init__(self, nodes: Nodes) -> None:
        here = list(_reached(nodes, (Loop, Blanks)))
        text = [node for node in here if isinstance(node, Text) or (isinstance(node, Loop) and node.has_text)]
        soon = _reached(nodes, (Loop, Blanks, Expected))
        self._loops = [node for node in text if isinstance(node, Loop)]
        self._has_text = bool(text)
        self._is_reasoning = any(isinstance(node, Text) and node.is_reasoning for node in text)
        self._markers = Markers(marker for node in soon for marker in _markers(node))
        self._after_text = tuple(text) or nodes
        self._moves = self._after_text != nodes

    def read(self, text: str, at: int, is_end: bool, writer: PartWriter) -> tuple[int, Nodes | None]:
        write = writer.reasoning if self._is_reasoning else writer.content
        start = at
        while True:
            at = self._markers.next(text, at)
            if self._moves and at > start and not text[start:at].isspace():
                write(text[start:at])
                return at, self._after_text
            found = self._markers.at(text, at, is_end) if at < len(text) else OPEN
            if found is not None:
                break
            at += 1
        if at > start:
            write(text[start:at])
        if not isinstance(found, Found):
            return at, None
        writer.marker()
        return at + found.length, _joined(found.meanings)

    def has_begun_entry(self, held: str, num_calls: int) -> bool:
        """Whether the text held back at the end of a cut answer begins an entry, such as a call, and is not text."""
        if not held or isinstance(self._markers.at(held, 0, True), Found):
            return False
        return not self._has_text or any(
            (loop.is_needed and not num_calls) or held.startswith(loop.triggers) for loop in self._loops
        )


class Expecting:
    """The state before a marker that the format requires, possibly after whitespace. At the end of the answer, an
    incomplete marker counts as complete."""

    def __init__(self, nodes: list[Expected]) -> None:
        self._markers = Markers((node.spelling, node.next) for node in nodes)
        self._after = _joined(tuple(node.next for node in nodes))

    def read(self, text: str, at: int, is_end: bool, writer: PartWriter) -> tuple[int, Nodes | None]:
        start = at
        while at < len(text) and at - start < MAX_BLANKS and text[at].isspace():
            at += 1
        found = self._markers.at(text, at, False)
        if found == OPEN:
            return len(text) if is_end else start, None
        if found is None:
            return start, self._after
        writer.marker()
        return at + found.length, _joined(found.meanings)


class Layout:
    """The state before whitespace of the format, which the model may omit. It skips as much of it as the text has."""

    def __init__(self, node: Blanks) -> None:
        self._node = node

    def read(self, text: str, at: int, is_end: bool, writer: PartWriter) -> tuple[int, Nodes | None]:
        blanks, start = self._node.text, at
        while at < len(text) and at - start < len(blanks) and text[at] == blanks[at - start]:
            at += 1
        if at == len(text) and at - start < len(blanks) and not is_end:
            return start, None
        return at, self._node.next


class Calling:
    """The state inside a call's arguments."""

    def __init__(self, node: Arguments) -> None:
        self._node = node
        self._has_begun = False
        self._arguments = XmlArguments(*node.xml) if node.xml else JsonArguments()

    def read(self, text: str, at: int, is_end: bool, writer: PartWriter) -> tuple[int, Nodes | None]:
        if not self._has_begun:
            writer.begin_call(self._node.name)
            self._has_begun = True
        at = self._arguments.read(text, at, is_end, writer.arguments)
        if not self._arguments.is_done:
            return at, None
        writer.end_call()
        return at, self._node.next


def _reached(nodes: Nodes, through: tuple[type[Loop] | type[Blanks] | type[Expected], ...]) -> Iterator[Node]:
    """Yield all nodes that may come next: `nodes`, the entries of loops, and the nodes after a node of the types
    `through`. Such a node may match no text."""
    pending, seen = list(nodes), set()
    while pending:
        node = pending.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, Loop):
            pending += node.entries
        if isinstance(node, through):
            pending += node.next


def _markers(node: Node) -> Iterator[tuple[Spelling, Nodes]]:
    if isinstance(node, Text):
        yield from ((end, node.next) for end in node.ends)
    elif isinstance(node, Marker | Expected):
        yield node.spelling, node.next


def _joined(several: tuple[Nodes, ...]) -> Nodes:
    return tuple(dict.fromkeys(node for nodes in several for node in nodes))


Write = Callable[[str], None]


class JsonArguments:
    """Passes JSON arguments on as they stream. `is_done` is true after the value's end."""

    def __init__(self) -> None:
        self.is_done = False
        self._json = JsonText()
        self._has_begun = False

    def read(self, text: str, at: int, is_end: bool, write: Write) -> int:
        """Read from position `at`. Returns the new position."""
        if not self._has_begun:
            at = BLANKS.match(text, at).end()  # type: ignore[union-attr]
            self._has_begun = at < len(text)
        end = self._json.scan(text, at)
        if end > at:
            write(text[at:end])
        if is_end:
            self._json.end()
        self.is_done = self._json.is_done
        return end
