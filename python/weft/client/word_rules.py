"""Checks the words and token rules of requests (bad words, stop words, end tokens, biases), and converts them to token
ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from torch import Tensor

from weft.client.model_text import ModelText
from weft.config import EngineConfig
from weft.core import SamplingParams
from weft.core.request import (
    MAX_BAD_WORD_TOKENS,
    OWN_NAMES,
    OWN_PENALTIES,
    FieldNames,
    PenaltyRule,
    TokenRules,
)
from weft.errors import InputError
from weft.grammar.vocabulary.tokenizer import token_texts
from weft.tokenizer.spelling import Speller
from weft.tokenizer.stop_words import StopSequences, StopTexts, StopTokens
from weft.tokenizer.text import RunningText

WatcherFactory = Callable[[], RunningText | StopTokens | None]
"""Makes the watcher that finds a sequence's stop words (None: no stop words). The watchers of a request share one
automaton."""


@dataclass(frozen=True, eq=False)
class WordRules:
    """Checks and converts the word lists of requests. Each list has at most `max_words` entries and `max_word_bytes`
    bytes. Words given as text need a tokenizer. Methods raise `InputError` for words that break a limit or do not fit
    the model."""

    text: ModelText
    max_words: int = EngineConfig.max_words
    max_word_bytes: int = EngineConfig.max_word_bytes

    def rules(
        self,
        sampling: SamplingParams,
        end_ids: Iterable[int] | None = None,
        bias: Tensor | None = None,
        penalties: PenaltyRule = OWN_PENALTIES,
        names: FieldNames = OWN_NAMES,
    ) -> TokenRules:
        """Convert sampling parameters to rules in token ids. `end_ids` end the answer (None: the model's end tokens).
        `bias` [V] is added to the logits. `penalties` defines how penalties apply."""
        text = self.text
        if bias is not None and bias.shape[0] != text.vocab_size:
            raise InputError(
                f"embedding bias shape is not as expected: {names.bias} has {bias.shape[0]} entries; this model's "
                f"vocabulary has {text.vocab_size}"
            )
        self._check_words("bad_words", sampling.bad_words, names)
        self._check_words("stop_token_ids", sampling.stop_token_ids, names)
        words = self._bad_words(sampling.bad_words)
        text.check("bad_words", [token for word in words for token in word])
        text.check("stop_token_ids", sampling.stop_token_ids)
        text.check("logit_bias", list(sampling.logit_bias or ()))
        if sampling.top_p_reset_ids is not None:
            text.check("top_p_reset_ids", [sampling.top_p_reset_ids])
        own = text.end_ids if end_ids is None else tuple(end_ids)
        ends = dict.fromkeys((*own, *sampling.stop_token_ids)) if sampling.min_tokens else ()
        return TokenRules(tuple(sorted(words)), tuple(ends), bias, penalties)

    def stop_words(
        self, words: Sequence[str | Sequence[int]], names: FieldNames = OWN_NAMES
    ) -> WatcherFactory:
        """A factory of watchers for these stop words."""
        if not words:
            return lambda: None
        self._check_words(names.stop_words, words, names)
        sequences = [word for word in words if not isinstance(word, str)]
        for sequence in sequences:
            self.text.check(names.stop_words, sequence)
        vocabulary = self.text.vocabulary
        strings = [word for word in words if isinstance(word, str)]
        shown = None if vocabulary is None else vocabulary.with_markers
        texts = StopTexts(strings, token_texts(shown) if strings and shown is not None else None)
        make = partial(RunningText, self.text.tokenizer_for("stop words"), texts) if texts else None
        if not sequences:
            return make or (lambda: None)
        found = StopSequences(sequences)
        return lambda: StopTokens(found, make() if make is not None else None)

    def _check_words(self, name: str, words: Sequence[str | Sequence[int] | int], names: FieldNames) -> None:
        """Raise `InputError` for a list with too many entries or bytes."""
        if len(words) > self.max_words:
            raise InputError(
                f"{name} has {len(words)} entries; a request may have {self.max_words}: give "
                f"fewer{names.or_raise('max_words')}"
            )
        size = sum(num_bytes(word) for word in words)
        if size > self.max_word_bytes:
            raise InputError(
                f"{name} holds {size} bytes, a token id counting for four; a request may have "
                f"{self.max_word_bytes}: give fewer{names.or_raise('max_word_bytes')}"
            )

    def _bad_words(self, words: Sequence[str | Sequence[int]]) -> set[tuple[int, ...]]:
        size = sum(num_bytes(word) for word in words if isinstance(word, str))
        if not size:
            return {tuple(map(int, word)) for word in words}
        self.text.tokenizer_for("bad_words")
        most = MAX_BAD_WORD_TOKENS * self.text.longest
        if size > most:
            raise InputError(
                f"bad_words hold {size} bytes of text; {MAX_BAD_WORD_TOKENS} tokens of this model, for which there is "
                f"room, hold {most} at most"
            )
        return self._speller.bad_words(words, MAX_BAD_WORD_TOKENS)

    @cached_property
    def _speller(self) -> Speller:
        assert self.text.vocabulary is not None
        return Speller(self.text.tokenizer_for("bad_words"), self.text.vocabulary.with_markers.tokens)


def num_bytes(word: str | Sequence[int] | int) -> int:
    """The size of a word: its bytes in UTF-8, or four for each token id."""
    if isinstance(word, str):
        return len(word.encode())
    return 4 * len(word) if isinstance(word, Sequence) else 4
