"""`Guide.after`: free text until a trigger, then a guide, for models that reason before they answer.

The trigger is a token, or a string that is searched for in the bytes of the tokens. It may begin or end inside a token
(`csrc/grammar/after/rules.h`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields

from weft import _core
from weft.errors import GuideError
from weft.grammar.base import NO_REQUEST, CompiledGuide, CompileParts, Matcher, Opening
from weft.grammar.guide import Guide, GuideKind
from weft.grammar.starts import opens_ahead
from weft.grammar.vocabulary.tokenizer import Vocabulary, token_texts

KIND: GuideKind = "after"
MAX_NESTED = 16
LEFT_OUT = (
    "payload",
    "python_type",
    "is_read",
)  # fields of the inner guide that the outer guide's source does not store
MAX_TRIGGER_BYTES = 256


@dataclass(frozen=True)
class After:
    """The parts of an "after" guide: the trigger, the guide behind it, and the limit of free tokens."""

    trigger: int | str
    guide: Guide
    max_free_tokens: int | None

    @classmethod
    def of(cls, guide: Guide) -> After:
        """Parse a guide that `made` wrote. Raises `GuideError` for any other source."""
        try:
            data = json.loads(guide.source)
            inner = data["guide"]
            if not isinstance(inner["source"], str):
                inner["source"] = json.dumps(inner["source"])
            of_guide = Guide(**inner, payload=guide.payload, python_type=guide.python_type)
            return cls(data["trigger"], of_guide, data["max_free_tokens"])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise GuideError(f"not the source of a guide after a trigger ({error!r})") from None

    def made(self) -> Guide:
        """The guide with these parts. Its source is JSON of them; the inner guide's `payload` and `python_type` stay
        objects."""
        inner = self.guide
        parts = {part.name: getattr(inner, part.name) for part in fields(inner) if part.name not in LEFT_OUT}
        if inner.kind == KIND:  # a JSON string within a JSON string would double its escapes at each level
            parts["source"] = json.loads(inner.source)
        source = {"trigger": self.trigger, "max_free_tokens": self.max_free_tokens, "guide": parts}
        return Guide(KIND, json.dumps(source), payload=inner.payload, python_type=inner.python_type)

    def check(self) -> None:
        """Raise `GuideError` for errors that do not depend on the vocabulary."""
        if isinstance(self.trigger, bool) or not isinstance(self.trigger, int | str):
            raise GuideError(f"a trigger is a text or a token id, not {type(self.trigger).__name__}")
        if isinstance(self.trigger, str):
            _check_text(self.trigger)
        elif self.trigger < 0:
            raise GuideError(f"the trigger is token {self.trigger}; give an id of the vocabulary")
        limit = self.max_free_tokens
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise GuideError(f"max_free_tokens is {limit!r}; it must be 0 or more, or None for no limit")
        depth, inner = 1, self.guide
        while inner.kind == KIND:
            depth, inner = depth + 1, After.of(inner).guide
            if depth > MAX_NESTED:
                raise GuideError(f"at most {MAX_NESTED} triggers may stand one after another")
        if not inner.is_read:
            inner.check()


def _check_text(trigger: str) -> None:
    try:
        size = len(trigger.encode())
    except UnicodeEncodeError as error:
        raise GuideError(f"the trigger is not text that UTF-8 can hold: {error.reason}") from None
    if not 1 <= size <= MAX_TRIGGER_BYTES:
        raise GuideError(f"the trigger has {size} bytes; it must have 1 to {MAX_TRIGGER_BYTES}")


class CompiledAfter:
    """A compiled "after" guide: free text, the trigger, and the compiled guide behind it."""

    def __init__(self, guide: Guide, after: After, inner: CompiledGuide, vocabulary: Vocabulary) -> None:
        self.guide = guide
        self.inner = inner
        self.vocab_size = vocabulary.vocab_size
        self.backend = inner.backend
        self.notes = inner.notes
        self._max_free_tokens = -1 if after.max_free_tokens is None else after.max_free_tokens
        self._rules = _rules(after, inner, vocabulary)

    @property
    def memory_bytes(self) -> int:
        """The bytes of the inner guide and of the trigger's tables."""
        return int(self.inner.memory_bytes + self._rules.memory_bytes)

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """A new matcher at the start of the free text."""
        return self._behind(self.inner.matcher(opening))

    @property
    def opens_ahead(self) -> bool:
        """Whether the matchers of the inner guide start slowly."""
        return opens_ahead(self.inner)

    @property
    def sequence_bytes(self) -> int:
        """The maximum bytes that the matcher of one sequence may hold; 0 if its matchers don't start slowly."""
        return self.inner.sequence_bytes if opens_ahead(self.inner) else 0

    @property
    def memory_settings(self) -> str:
        """The settings that bound `sequence_bytes`."""
        return self.inner.memory_settings if opens_ahead(self.inner) else ""

    def open(self, opening: Opening) -> Matcher:
        """Start the matcher of a request's first sequence, ahead of its slot."""
        assert opens_ahead(self.inner)
        return self._behind(self.inner.open(opening))

    def _behind(self, matcher: Matcher) -> Matcher:
        return _core.after_matcher(self._rules, matcher, self._max_free_tokens)


def compile_after(guide: Guide, parts: CompileParts) -> CompiledGuide:
    """Compile a guide of `Guide.after`. Raises `GuideError`."""
    after = After.of(guide)
    after.check()
    return CompiledAfter(guide, after, parts.compile_part(after.guide), parts.vocabulary)


def _rules(after: After, inner: CompiledGuide, vocabulary: Vocabulary) -> _core.AfterRules:
    trigger = _resolve(after.trigger, vocabulary)
    texts = token_texts(vocabulary.with_markers)
    if isinstance(trigger, int):
        return _core.AfterRules(texts, vocabulary.vocab_size, trigger)
    rules = _core.AfterRules(texts, vocabulary.vocab_size, trigger.encode())
    rules.settle(inner.matcher())
    if not rules.can_end():
        raise GuideError(f"no token of this vocabulary can end the trigger {trigger!r}; choose another")
    if after.max_free_tokens is not None and not rules.can_be_forced():
        raise GuideError(
            f"the tokens of this vocabulary can't spell the trigger {trigger!r} from everywhere, as max_free_tokens "
            "needs it; give a token's id, or no limit"
        )
    return rules


def _resolve(trigger: int | str, vocabulary: Vocabulary) -> int | str:
    """Resolve the name of a special token to its id; other strings stay. Raises `GuideError` for a trigger that this
    vocabulary can't have."""
    if isinstance(trigger, str):
        token = vocabulary.special_names.get(trigger)
        if token is None:
            held = next(
                (name for name in vocabulary.with_markers.special_names if len(name) > 2 and name in trigger),
                None,
            )
            if held is not None:
                raise GuideError(
                    f"the trigger {trigger!r} holds the special token {held!r}, which is no text; use Guide.after "
                    "within Guide.after, one for each part"
                )
            return trigger
    else:
        token = trigger
    if token >= vocabulary.vocab_size:
        raise GuideError(
            f"the trigger is token {token}; the vocabulary's ids are 0 to {vocabulary.vocab_size - 1}"
        )
    if token in vocabulary.end_ids:
        raise GuideError(
            f"the trigger {trigger!r} is an end token, after which nothing comes; choose another"
        )
    if not vocabulary.tokens[token] and token not in vocabulary.special_ids:
        raise GuideError(f"the trigger is token {token}, which the tokenizer does not use")
    return token
