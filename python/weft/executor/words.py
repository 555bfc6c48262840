"""Texts and token ids of one model: prompts, bad words and stop words as the engine takes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor
from transformers import PreTrainedTokenizerFast

from weft.core import SamplingParams
from weft.engine.sampling_state import MAX_BAD_WORD_TOKENS, TokenRules
from weft.errors import InputError
from weft.grammar.tokenizer import Vocabulary
from weft.text import RunningText, Speller


@dataclass(frozen=True, eq=False)
class Words:
    """What a model's vocabulary and tokenizer, where there are such, make of texts.

    `end_ids` end an answer. Without a tokenizer texts are refused (`InputError`); without a vocabulary, guides.
    """

    vocab_size: int
    end_ids: tuple[int, ...]
    vocabulary: Vocabulary | None = None
    tokenizer: PreTrainedTokenizerFast | None = None

    def encode(self, prompt: str) -> list[int]:
        """The token ids of a prompt."""
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the prompt is not text that UTF-8 can hold: {error.reason}") from None
        return list(self._tokenizer_for("the prompt").encode(prompt, verbose=False))

    def check(self, name: str, tokens: Iterable[int]) -> None:
        """Raise `InputError` unless all are ids of this model."""
        bad = next((t for t in tokens if not 0 <= t < self.vocab_size), None)
        if bad is not None:
            raise InputError(f"{name} holds token id {bad}; ids of this model are 0 to {self.vocab_size - 1}")

    def rules(
        self, sampling: SamplingParams, end_ids: Iterable[int] | None = None, bias: Tensor | None = None
    ) -> TokenRules:
        """What sampling parameters say in token ids. `end_ids` end the answer (default: the model's); `bias` [V] is
        added to the logits."""
        if bias is not None and bias.shape[0] != self.vocab_size:
            raise InputError(
                f"embedding_bias has {bias.shape[0]} entries; this model's vocabulary has {self.vocab_size}"
            )
        words = self._bad_words(sampling.bad_words)
        self.check("bad_words", (token for word in words for token in word))
        self.check("stop_token_ids", sampling.stop_token_ids)
        self.check("logit_bias", sampling.logit_bias or ())
        own = self.end_ids if end_ids is None else tuple(end_ids)
        ends = dict.fromkeys((*own, *sampling.stop_token_ids)) if sampling.min_tokens else ()
        return TokenRules(tuple(sorted(words)), tuple(ends), bias)

    def stop_texts(self, texts: Sequence[str]) -> RunningText | None:
        """What watches an answer for texts; None for none."""
        return RunningText(self._tokenizer_for("stop words"), tuple(texts)) if texts else None

    def _bad_words(self, words: Sequence[str | Sequence[int]]) -> set[tuple[int, ...]]:
        if any(isinstance(word, str) for word in words):
            return self._speller.bad_words(words, MAX_BAD_WORD_TOKENS)
        return {tuple(map(int, word)) for word in words}

    @cached_property
    def _speller(self) -> Speller:
        tokenizer = self._tokenizer_for("bad_words")
        assert self.vocabulary is not None
        return Speller(tokenizer, self.vocabulary.tokens)

    def _tokenizer_for(self, what: str) -> PreTrainedTokenizerFast:
        if self.tokenizer is None:
            raise InputError(
                f"{what} can't be a text: there is no tokenizer; give token ids, or a model directory with one "
                "(Executor(tokenizer=...) takes a directory)"
            )
        return self.tokenizer


class StopTokens:
    """Watches an answer for sequences of token ids, and for texts (`texts`, where there are such)."""

    def __init__(self, sequences: Sequence[Sequence[int]], texts: RunningText | None = None) -> None:
        self._sequences = [tuple(sequence) for sequence in sequences]
        self._longest = max((len(sequence) for sequence in self._sequences), default=0)
        self._texts = texts
        self._last: tuple[int, ...] = ()

    def fork(self) -> StopTokens:
        """Another one that has seen the same tokens, for a beam of its own."""
        twin = copy(self)
        twin._texts = self._texts.fork() if self._texts is not None else None
        return twin

    def feed(self, token: int) -> str | None:
        """Take the next token; the stop word that now is complete: the text, or the sequence as it is written."""
        word = self._texts.feed(token) if self._texts is not None else None
        self._last = (*self._last, token)[-self._longest :] if self._longest else ()
        found = next((s for s in self._sequences if self._last[-len(s) :] == s), None)
        return word if found is None else str(list(found))
