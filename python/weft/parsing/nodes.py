"""What a format is made of: nodes, each with those that may come next."""

from __future__ import annotations

from dataclasses import dataclass

from weft.parsing.schema import Schema
from weft.parsing.spelling import Spelling
from weft.parsing.xml_styles import XmlStyle

Nodes = tuple["Node", ...]
"""Any of them may be where the answer stands; at none, all that follows is text."""


@dataclass(eq=False)
class Text:
    """Text up to one of its ends, which nothing else interrupts."""

    is_reasoning: bool
    ends: list[Spelling]
    next: Nodes


@dataclass(eq=False)
class Marker:
    """A marker that may come here, or anywhere in the text that may come here."""

    spelling: Spelling
    next: Nodes


@dataclass(eq=False)
class Expected:
    """A marker that should come at once, and is missed by nobody."""

    spelling: Spelling
    next: Nodes


@dataclass(eq=False)
class Blanks:
    """Blanks that a format has here, as far as they come."""

    text: str
    next: Nodes


@dataclass(eq=False)
class Arguments:
    """A call's arguments: in JSON, or in a style of XML, which needs their schema."""

    name: str
    xml: tuple[XmlStyle, Schema] | None
    next: Nodes


@dataclass(eq=False)
class Loop:
    """What comes any number of times. `has_text`: with text for the user between, in which one of `triggers` begins an
    entry for sure; `is_needed`: the first entry comes before any text."""

    has_text: bool
    entries: Nodes
    next: Nodes
    triggers: tuple[str, ...] = ()
    is_needed: bool = False


Node = Text | Marker | Expected | Blanks | Arguments | Loop
