"""Rewrites the whitespace of XGrammar's JSON grammars, in their EBNF.

XGrammar's own options give one kind of whitespace to every place between JSON tokens, or fixed separators that it does
not apply everywhere: nested values of any type keep ", ", and constants such as `{"a": [1, 2]}` have no spaces. So
weft lets XGrammar write bounded whitespace (`LAYOUT`), and replaces it according to the brackets, commas and colons
beside it. The other whitespace, between the elements of XML tool calls, is layout and stays.
"""

from __future__ import annotations

import re

LAYOUT = 8
"""The bound that XGrammar gets for whitespace that `separated` replaces. XGrammar prints bounds above 1 as
repetitions of a rule called whitespace."""
TIDY_SEPARATORS = ('"," " "?', '":" " "?')
"""A comma and a colon in EBNF, each with at most one space after it."""

BLANKS = rf"whitespace(?:_\d+)?\{{0, {LAYOUT}\}}"
TEXT = r'"(?:[^"\\]|\\.)*+"?'
BETWEEN = [
    (re.compile(rf'(?<!\\)("[\[{{]") {BLANKS}'), r"\1"),
    (re.compile(rf'{BLANKS} ("[\]}}]")'), r"\1"),
    (re.compile(rf"\(=\({BLANKS} "), "(=("),  # in the look-ahead of strings
]
BEFORE_KEY = re.compile(rf'{BLANKS} (?=(?:\w+|{TEXT}) {BLANKS} ":")')
COMMA, COLON = (re.compile(rf'{BLANKS} "{mark}" {BLANKS}') for mark in ",:")

# Constants are literals of compact JSON. Regular expressions and character classes may contain quotes, so they are
# matched, too, and stay as they are. In a literal the quotes and backslashes of JSON are escaped.
STRING = r'\\"(?:\\\\(?:\\.|[^"\\])|\\[^"\\]|[^"\\])*+\\"'
LITERALS = re.compile(
    rf'Regex\({TEXT}|\[(?:[^\]\\]|\\.)*+\]?|(?P<constant>"[\[{{](?:{STRING}|[^"\\ ])*[\]}}]")|{TEXT}'
)
IN_CONSTANT = re.compile(rf"{STRING}|(?P<comma>,)|(?P<colon>:)")


def separated(grammar: str, separators: tuple[str, str] | None, has_constants: bool = True) -> str:
    """Replace the whitespace between JSON tokens in a grammar's EBNF by `separators`, such as (", ", ": "). With None,
    one space or none may follow a comma and a colon. With `has_constants`, literals that are JSON arrays or objects get
    the separators, too."""
    comma, colon = TIDY_SEPARATORS if separators is None else (f'"{text}"' for text in separators)
    for place, tidy in BETWEEN:
        grammar = place.sub(tidy, grammar)
    grammar = BEFORE_KEY.sub("", COMMA.sub(comma, grammar))
    grammar = COLON.sub(colon, grammar)
    if not has_constants:
        return grammar

    def spelled(literal: re.Match[str]) -> str:
        if literal["constant"] is None:
            return literal[0]
        return IN_CONSTANT.sub(
            lambda part: f'" {comma} "' if part["comma"] else f'" {colon} "' if part["colon"] else part[0],
            literal[0],
        )

    return LITERALS.sub(spelled, grammar)
