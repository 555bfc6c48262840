"""What weft reads in LLGuidance's Lark: special tokens by name, and options that it does not support.

weft tells LLGuidance of special tokens by their numbers alone: they have no text, so that no grammar allows one by
accident. A name such as `<|tool_call|>` is replaced by the number that the tokenizer has for it, `<[128010]>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from weft.errors import GuideError

# As LLGuidance's lexer has them. Names inside of comments, strings (also those of `%json`) and regexes are text. No
# part can be read in two ways, and one that does not end, which LLGuidance refuses, goes on to the end: so a grammar is
# read once, in a time that grows with its length.
LEXEMES = re.compile(
    r"""
    (?P<skipped> \s++ | (?: \#|// ) [^\n]*+ )
    | (?P<special> <[^<>\s]++> )
    | (?P<name> [A-Za-z_][\w-]*+ )
    | " (?: [^"\\\x00-\x1f]++ | \\. )*+ "?
    | / (?: [^/\\]++ | \\. )++ /?
    | [^\s\#/<A-Za-z_"=]++
    | .
    """,
    re.VERBOSE | re.DOTALL,
)

REFUSED_OPTIONS = ("max_tokens", "stop", "temperature")
"""Options of a rule that can't be honoured: masks would depend on more than the text, or text be taken back."""


def with_numbers(grammar: str, names: Mapping[str, int]) -> str:
    """The grammar, its special tokens by number. Raises `GuideError` for a name that is not one of `names`, and for
    options that are not supported."""
    parts: list[str] = []
    last = ""
    for found in LEXEMES.finditer(grammar):
        text = found[0]
        kind = found.lastgroup
        if kind == "special" and not text.startswith("<["):
            text = _number(text, names)
        elif text == "=" and last in REFUSED_OPTIONS:
            raise _refused(last)
        parts.append(text)
        if kind != "skipped":
            last = text if kind == "name" else ""
    return "".join(parts)


def _number(name: str, names: Mapping[str, int]) -> str:
    if name not in names:
        raise GuideError(f"Lark: {name} is no special token of this tokenizer; {_instead(names)}")
    return f"<[{names[name]}]>"


def _refused(option: str) -> GuideError:
    instead = ", or use suffix" if option == "stop" else ""
    return GuideError(
        f"Lark: {option} is not supported, since masks must not depend on more than the text; leave it out{instead}"
    )


def _instead(names: Mapping[str, int]) -> str:
    known = sorted(name for name in names if re.fullmatch(r"<[^<>\s]+>", name))
    some = f"it has {', '.join(known[:8])}{' and others' if len(known) > 8 else ''}; " if known else ""
    return f'{some}give a token\'s number, as <[7]>, or write what is text in quotes, as "<tag>"'
