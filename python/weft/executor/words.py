"""Texts and token ids of one model: prompts, bad words and stop words as the engine takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from torch import Tensor
from transformers import PreTrainedTokenizerFast

from weft.config import EngineConfig
from weft.core import SamplingParams
from weft.engine.device.sampling import MAX_BAD_WORD_TOKENS, TokenRules
from weft.engine.scheduling.scheduler import check_length
from weft.errors import CapacityError, InputError
from weft.executor.types.fields import read_tokens
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.prompts import Prompt, token_ids
from weft.spelling import Speller
from weft.stop_words import StopSequences, StopTexts, StopTokens
from weft.text import RunningText

LONGEST_TOKEN = 16
"""Bytes that a token is thought to hold at least, where texts are bounded by it."""


def num_bytes(word: str | Sequence[int] | int) -> int:
    """What a word holds: its bytes in UTF-8, or four for each token id."""
    if isinstance(word, str):
        return len(word.encode())
    return 4 * len(word) if isinstance(word, Sequence) else 4


@dataclass(frozen=True, eq=False)
class Words:
    """What a model's vocabulary and tokenizer, where there are such, make of texts.

    `end_ids` end an answer. Texts have at most `max_seq_len` tokens (None: any number), a request `max_words` bad
    words, and as many stop words, each list of `max_word_bytes` bytes at most. Without a tokenizer texts are refused
    (`InputError`); without a vocabulary, guides.
    """

    vocab_size: int
    end_ids: tuple[int, ...]
    vocabulary: Vocabulary | None = None
    tokenizer: PreTrainedTokenizerFast | None = None
    max_seq_len: int | None = None
    max_words: int = EngineConfig.max_words
    max_word_bytes: int = EngineConfig.max_word_bytes

    def prompt(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt, whose length is looked at before anything else. Raises `CapacityError` where it
        leaves no room for an answer, and `InputError`."""
        if isinstance(prompt, str):
            self.check_text(prompt)
            return self._own(list(self._tokenizer_for("the prompt").encode(prompt, verbose=False)))
        if hasattr(prompt, "__len__"):
            self._check_length(len(prompt))
        return self._own(token_ids(prompt))

    def _own(self, prompt: list[int]) -> list[int]:
        self.check("the prompt", prompt)
        return prompt

    def ids(self, name: str, prompt: Sequence[int]) -> tuple[int, ...]:
        """The token ids of a prompt that is given as such; errors as of `prompt`."""
        self._check_length(len(prompt))
        read = read_tokens(name, prompt) if prompt else ()
        self.check(name, read)
        return read

    def drafts(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """What an answer is expected to be, as far as it can be that long."""
        return read_tokens("external_draft_tokens_config.tokens", tokens[: self.max_seq_len])

    def check_text(self, prompt: str) -> None:
        """Raise `CapacityError` for a text of so many bytes that no tokens of this model that fit can hold it, and
        `InputError` for one that is none."""
        self._check_bytes(len(prompt))  # there are at least as many
        try:
            size = len(prompt.encode())
        except UnicodeEncodeError as error:
            raise InputError(f"the prompt is not text that UTF-8 can hold: {error.reason}") from None
        self._check_bytes(size)

    def _check_bytes(self, size: int) -> None:
        if self.max_seq_len is None or size <= self.max_seq_len * self._longest:
            return
        raise CapacityError(
            f"the prompt has {size} bytes or more, but max_seq_len is {self.max_seq_len} tokens (prompt and answer), "
            f"and no token of this model holds more than {self._longest} bytes; shorten the prompt or raise max_seq_len"
        )

    def _check_length(self, num_tokens: int) -> None:
        if self.max_seq_len is not None:
            check_length(num_tokens, self.max_seq_len)

    @cached_property
    def _longest(self) -> int:
        """Bytes of the longest token."""
        vocabulary = self.vocabulary
        if vocabulary is None:
            return LONGEST_TOKEN
        names = (len(name.encode()) for name in vocabulary.special_names)
        # Tokenizers may drop or merge some characters, never most of a text.
        return max(LONGEST_TOKEN, *map(len, vocabulary.tokens), *names)

    def check(self, name: str, tokens: Sequence[int]) -> None:
        """Raise `InputError` unless all are ids of this model."""
        if not tokens or (min(tokens) >= 0 and max(tokens) < self.vocab_size):
            return
        bad = next(t for t in tokens if not 0 <= t < self.vocab_size)
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
        self.check_words("bad_words", sampling.bad_words)
        self.check_words("stop_token_ids", sampling.stop_token_ids)
        words = self._bad_words(sampling.bad_words)
        self.check("bad_words", [token for word in words for token in word])
        self.check("stop_token_ids", sampling.stop_token_ids)
        self.check("logit_bias", list(sampling.logit_bias or ()))
        own = self.end_ids if end_ids is None else tuple(end_ids)
        ends = dict.fromkeys((*own, *sampling.stop_token_ids)) if sampling.min_tokens else ()
        return TokenRules(tuple(sorted(words)), tuple(ends), bias)

    def check_words(self, name: str, words: Sequence[str | Sequence[int] | int]) -> None:
        """Raise `InputError` for more words than may be, or longer ones."""
        if len(words) > self.max_words:
            raise InputError(
                f"{name} has {len(words)} entries; a request may have {self.max_words} (EngineConfig.max_words; of an "
                "executor: ExecutorConfig.max_words)"
            )
        size = sum(num_bytes(word) for word in words)
        if size > self.max_word_bytes:
            raise InputError(
                f"{name} holds {size} bytes, a token id counting for four; a request may have {self.max_word_bytes} "
                "(EngineConfig.max_word_bytes; of an executor: ExecutorConfig.max_word_bytes)"
            )

    def stop_words(
        self, name: str, words: Sequence[str | Sequence[int]]
    ) -> Callable[[], RunningText | StopTokens | None]:
        """What makes watchers of an answer for stop words, one for each sequence; they share what finds the words."""
        if not words:
            return lambda: None
        self.check_words(name, words)
        sequences = [word for word in words if not isinstance(word, str)]
        for sequence in sequences:
            self.check(name, sequence)
        texts = StopTexts([word for word in words if isinstance(word, str)])
        make = partial(RunningText, self._tokenizer_for("stop words"), texts) if texts else None
        if not sequences:
            return make or (lambda: None)
        found = StopSequences(sequences)
        return lambda: StopTokens(found, make() if make is not None else None)

    def _bad_words(self, words: Sequence[str | Sequence[int]]) -> set[tuple[int, ...]]:
        size = sum(num_bytes(word) for word in words if isinstance(word, str))
        if size:
            self._tokenizer_for("bad_words")
            if size > MAX_BAD_WORD_TOKENS * self._longest:
                raise InputError(
                    f"bad_words hold {size} bytes of text; {MAX_BAD_WORD_TOKENS} tokens of this model, for which there "
                    f"is room, hold {MAX_BAD_WORD_TOKENS * self._longest} at most"
                )
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
