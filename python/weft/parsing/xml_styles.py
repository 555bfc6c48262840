"""The styles that models write arguments as XML in, as XGrammar calls them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

ENTITIES = (("&quot;", '"'), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&"))
Hint = str | None
"""What a value says of itself: "string", "json", "dict" or "list"."""


@dataclass(frozen=True)
class XmlStyle:
    """An argument is `open`, what names it (`named`), `opened`, its value, and `close`.

    `hints` are what words in it say of the value. `nests`: values hold others, by their hint or, without hints, always.
    `has_lines`: values may stand on lines of their own. `escapes`: names are written with entities. `other` begins as
    `open` does, and opens nothing.
    """

    open: str
    opened: str
    close: str
    named: re.Pattern[str] = re.compile("(?P<key>.*)", re.DOTALL)
    hints: dict[str, str] = field(default_factory=dict)
    nests: bool = False
    has_lines: bool = False
    escapes: bool = False
    other: str = ""

    @property
    def openings(self) -> tuple[str, ...]:
        """What may be an opening, the longest first."""
        return (self.other, self.open) if self.other else (self.open,)

    @property
    def has_empty(self) -> bool:
        """Whether nothing may be a list or an object, since no value says what it is."""
        return self.nests and not self.hints

    def nests_with(self, hint: Hint) -> bool:
        """Whether a value may hold others."""
        return self.nests and (not self.hints or hint in ("dict", "list"))

    def read_head(self, head: str) -> tuple[str, Hint]:
        """The name, empty without one, and the hint in what names a value. What is not as it should be is the name."""
        found = self.named.fullmatch(head)
        words = found.groupdict() if found else {"key": head.strip()}
        name = words["key"] or ""
        for entity, char in ENTITIES if self.escapes else ():
            name = name.replace(entity, char)
        return name, self.hints.get(words.get("hint") or "")


def _deepseek(marker: str) -> XmlStyle:
    named = re.compile(r'(?P<key>.*)" string="(?P<hint>true|false)', re.DOTALL)
    hints = {"true": "string", "false": "json"}
    return XmlStyle(f'<{marker}parameter name="', '">', f"</{marker}parameter>", named, hints)


STYLES = {
    "qwen_xml": XmlStyle("<parameter=", ">", "</parameter>", has_lines=True),
    "minimax_xml": XmlStyle('<parameter name="', '">', "</parameter>"),
    "minimax_m3_xml": XmlStyle(
        "]<]minimax[>[<", ">", "]<]minimax[>[</{key}>", nests=True, other="]<]minimax[>[</"
    ),
    "deepseek_xml": _deepseek("\uff5cDSML\uff5c"),
    "deepseek_v4_1_xml": _deepseek("\uff5cDSML\uff5c "),
    "glm_xml": XmlStyle(
        "<arg_key>",
        "<arg_value>",
        "</arg_value>",
        re.compile(r"(?P<key>.*)</arg_key>\s*", re.DOTALL),
    ),
    "cohere_xml": XmlStyle(
        "<cofl:value",
        '">',
        "</cofl:value>",
        re.compile(r'(?: name="(?P<key>[^"]*)")? type="(?P<hint>\w+)'),
        {"raw": "string", "json": "json", "dict": "dict", "list": "list"},
        nests=True,
        escapes=True,
    ),
    "kimi_k3_xml": XmlStyle(
        '<|open|>argument key="',
        '"<|sep|>',
        "<|close|>argument<|sep|>",
        re.compile(r'(?P<key>.*)" type="(?P<hint>\w+)', re.DOTALL),
        {"string": "string"},
        escapes=True,
    ),
}
