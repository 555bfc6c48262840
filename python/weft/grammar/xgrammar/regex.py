"""What XGrammar would leave out of a regular expression in silence."""

from __future__ import annotations

from weft.errors import GuideError
from weft.grammar.schema import structure as json_schema


def check_regex(pattern: str) -> None:
    """Raises `GuideError` for look-around, and for anchors in the midst."""
    if json_schema.looks_around(pattern):
        raise GuideError(f"regex {json_schema.shown(pattern)}: XGrammar has no look-around")
    check_anchors(pattern)


def check_anchors(pattern: str) -> None:
    """Raises `GuideError` for anchors in the midst."""
    if json_schema.has_inner_anchor(pattern):
        raise GuideError("regex: XGrammar would ignore a ^ or $ that does not stand at its ends")
