"""Special tokens by name in LLGuidance's Lark.

weft tells LLGuidance of special tokens by their numbers alone: they have no text, so that no grammar allows one by
accident. A name such as `<|tool_call|>` is replaced by the number that the tokenizer has for it, `<[128010]>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from weft.errors import GuideError

# As LLGuidance's lexer has them. Names inside of comments, strings (also those of `%json`) and regexes are text.
LEXEMES = re.compile(
    r"""
    (?: \#|// ) [^\n]*
    | " (?: \\. | [^"\\\x00-\x1f\x7f] )* "
    | / (?: \\. | [^/\\] )+ /
    | (?P<special> <[^<>\s]+> )
    """,
    re.VERBOSE | re.DOTALL,
)


def with_numbers(grammar: str, names: Mapping[str, int]) -> str:
    """The grammar, its special tokens by number. Raises `GuideError` for a name that is not one of `names`."""

    def number(found: re.Match[str]) -> str:
        name = found["special"]
        if name is None or name.startswith("<["):
            return found[0]
        if name not in names:
            raise GuideError(f"Lark: {name} is no special token of this tokenizer; {_instead(names)}")
        return f"<[{names[name]}]>"

    return LEXEMES.sub(number, grammar)


def _instead(names: Mapping[str, int]) -> str:
    known = sorted(name for name in names if LEXEMES.fullmatch(name))
    some = f"it has {', '.join(known[:8])}{' and others' if len(known) > 8 else ''}; " if known else ""
    return f'{some}give a token\'s number, as <[7]>, or write what is text in quotes, as "<tag>"'
