"""LLGuidance's errors, in a line that says what is wrong in the text that was given."""

from __future__ import annotations

import pytest

from support.grammar.grammars import small_vocabulary
from weft.errors import GuideError
from weft.grammar import Guide
from weft.grammar.llguidance.backend import LLGuidanceBackend


@pytest.mark.parametrize(
    ("guide", "message"),
    [
        (Guide.regex("[0-9"), "regex: unclosed character class"),
        (Guide.regex("(?=a)b"), "regex: look-around, including look-ahead and look-behind, is not supported"),
        (Guide.lark('start: "a'), "Lark: line 1, column 10: lexer error"),
        (
            Guide.lark("start: A\nA: /[0-9/"),
            "Lark: line 2, column 4: invalid regex: unclosed character class",
        ),
        (Guide.lark("start: missing"), "Lark: "),
    ],
)
def test_errors_are_one_line(guide: Guide, message: str) -> None:
    with pytest.raises(GuideError) as caught:
        LLGuidanceBackend(small_vocabulary()).compile(guide)
    text = str(caught.value)
    assert text.startswith(message) and "\\n" not in text and "(?s)" not in text
