"""Answers that are whole at the limit: what `on_length="close"` needs to know of a guide, and matchers that keep to it.

A guide's grammar is read as rules over bytes (`csrc/grammar/closing/grammar.h`), which tell of each place how many
tokens the shortest end has. `closing_matcher` wraps a matcher of the guide: it lets through what the guide allows as
long as an end fits after it.
"""

from __future__ import annotations

from weft import _core
from weft.errors import GuideError
from weft.grammar.base import Closes, CompiledGuide, Matcher, Opening

MAX_SHOWN = 80


def prepare_closing(compiled: CompiledGuide, text: str | None = None) -> CompiledGuide:
    """The guide, its ends worked out (`text` as in `Closes`). Raises `GuideError` where they can't be known."""
    _tables(compiled, text)
    return compiled


def closing_matcher(compiled: CompiledGuide, opening: Opening) -> Matcher:
    """A new matcher at the start of the guide, whose text ends within `opening.room` tokens, the end token among them.

    Raises `GuideError` where the shortest answer is longer, or is not known.
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
    """The shortest answer for a message, or as much of it as fits."""
    known = tables.shortest(b"")
    text = known[2].decode(errors="replace") if known is not None else ""
    return f", {text[:MAX_SHOWN] + '...' * (len(text) > MAX_SHOWN)!r}," if text else ""


_UNKNOWN = 'on_length is "close", but how an answer under this guide ends can\'t be known'
_CLOSING_KINDS = ("json", "json_schema", "regex", "ebnf", "choice")  # where it is the library, not the guide


def _tables(compiled: CompiledGuide, text: str | None = None) -> _core.ClosingTables:
    if not isinstance(compiled, Closes):
        guide = compiled.guide
        backend = getattr(compiled, "backend", None)
        is_of_library = backend is not None and guide.kind in _CLOSING_KINDS
        why = f"{backend} compiled it" if is_of_library else f"it is of the kind {guide.kind!r}"
        raise GuideError(
            f'{_UNKNOWN}: {why}; use "cut", or a guide that XGrammar compiles from a JSON schema, a regex, a grammar '
            "or a choice"
        )
    try:
        return compiled.closing(text)
    except ValueError as error:
        if isinstance(error, GuideError):
            raise GuideError(f"{_UNKNOWN}: {error}") from None
        raise GuideError(f"{_UNKNOWN}: {error}") from error
