"""Checks the form of PromQL expressions, and finds the metrics that they read."""

from __future__ import annotations

import re

TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<duration>\d+(?:ms|[smhdwy]))
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<name>[A-Za-z_:][\w:]*)
    | (?P<operator>==|!=|=~|!~|>=|<=|[-+*/%^<>=,])
    | (?P<bracket>[()\[\]{}])
    )""",
    re.VERBOSE,
)
PAIRS = {")": "(", "]": "[", "}": "{"}
FUNCTIONS = {
    "deriv",
    "histogram_quantile",
    "increase",
    "label_values",
    "max_over_time",
    "min_over_time",
    "rate",
}
AGGREGATIONS = {"avg", "count", "max", "min", "sum"}
LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
"""Keywords before a list of labels."""
OPERATORS = {"and", "or", "unless"}


def tokens_of(expression: str) -> list[tuple[str, str]]:
    """Return the kinds and texts of an expression's tokens. Fails if it has other characters."""
    tokens, place = [], 0
    while expression[place:].strip():
        match = TOKEN.match(expression, place)
        assert match is not None and match.lastgroup is not None, f"{expression[place:]!r} in {expression}"
        tokens.append((match.lastgroup, match[match.lastgroup]))
        place = match.end()
    return tokens


def metrics_of(expression: str) -> set[str]:
    """Return the names of the metrics that an expression reads. Fails if the brackets do not match, or if a function
    is unknown."""
    tokens, opened, metrics = tokens_of(expression), list[str](), set[str]()
    is_list = False
    for (kind, text), (_, following) in zip(tokens, [*tokens[1:], ("", "")], strict=True):
        if kind == "bracket" and text in "([{":
            opened.append(text)
        elif kind == "bracket":
            assert opened and opened.pop() == PAIRS[text], expression
            is_list = False
        elif kind == "name" and text in LISTS:
            assert following == "(", expression
            is_list = True
        elif kind == "name" and following == "(":
            assert text in FUNCTIONS | AGGREGATIONS | OPERATORS, f"{text} in {expression}"
        elif kind == "name" and text in AGGREGATIONS:
            assert following in LISTS, expression
        elif kind == "name" and not is_list and opened[-1:] != ["{"] and text not in OPERATORS:
            metrics.add(text)
    assert not opened and metrics, expression
    return metrics
