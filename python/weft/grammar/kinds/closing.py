"""`on_length="close"`: an answer is complete when it reaches the token limit.

The guide's grammar is converted to rules over bytes (`csrc/grammar/closing/grammar.h`). They give the number of
tokens of the shortest known ending at each position. `closing_matcher` wraps a matcher of the guide, and masks every
token after which no ending fits into the tokens that are left.
"""

from __future__ import annotations

from weft import _core
from weft.errors import GuideError
from weft.grammar.base import Closes, CompiledGuide, Matcher, Opening

MAX_SHOWN = 80


def prepare_closing(compiled: CompiledGuide, text: str | None = None) -> CompiledGuide:
    """Compute a guide's shortest endings (`text` as in `Closes`), and return the guide. Raises `GuideError` if they
    can't be computed."""
    _tables(compiled, text)
    return compiled


def closing_matcher(compiled: CompiledGuide, opening: Opening) -> Matcher:
    """A new matcher whose text ends within `opening.room` tokens, the end token included.

    Raises `GuideError` if the shortest answer is longer or unknown, or if `opening.room` is None.
    """
    tables = _tables(compiled)
    if opening.room is None:
        raise GuideError('on_length is "close", but how many tokens the answer may have is not known')
    matcher, problem, needed = _core.closing_matcher(compiled.matcher(opening), tables, opening.room)
    if matcher is None and needed:
        raise GuideError(
            f'on_length is "close", and the shortest answer known{_shortest(tables)} needs {needed} tokens (the end '
            f"token is one), but there is room for {opening.room}; raise max_tokens, or shorten the prompt where "
            "max_seq_len is the bound"
        )
    if matcher is None:
        raise GuideError(f"{_UNKNOWN}: {problem}")
    return matcher


def _shortest(tables: _core.ClosingTables) -> str:
    """The shortest answer, shortened for a message."""
    known = tables.shortest(b"")
    text = known[2].decode(errors="replace") if known is not None else ""
    return f", {text[:MAX_SHOWN] + '...' * (len(text) > MAX_SHOWN)!r}," if text else ""


_UNKNOWN = 'on_length is "close", but how an answer under this guide ends can\'t be known'
# XGrammar knows the endings of these kinds, so for them the library is at fault and the error names it.
_CLOSING_KINDS = ("json", "json_schema", "regex", "ebnf", "choice")


def _tables(compiled: CompiledGuide, text: str | None = None) -> _core.ClosingTables:
    if not isinstance(compiled, Closes):
        guide = compiled.guide
        backend = getattr(compiled, "backend", None)
        is_of_library = backend is not None and guide.kind in _CLOSING_KINDS
        reason = f"{backend} compiled it" if is_of_library else f"it is of the kind {guide.kind!r}"
        raise GuideError(
            f'{_UNKNOWN}: {reason}; use "cut", or a guide that XGrammar compiles from a JSON schema, a regex, a '
            "grammar or a choice"
        )
    try:
        return compiled.closing(text)
    except ValueError as error:
        if isinstance(error, GuideError):
            raise GuideError(f"{_UNKNOWN}: {error}") from None
        raise GuideError(f"{_UNKNOWN}: {error}") from error
