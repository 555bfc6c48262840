"""Texts and token ids of one model: its vocabulary, its tokenizer, and prompts as the engine takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from weft.core import read_token_ids
from weft.core.prompts import Prompt
from weft.engine.admission import RAISE, check_length
from weft.errors import CapacityError, InputError
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.tokenizer.tokenizer import ChatTemplate, Tokenizer

LONGEST_TOKEN = 16
"""Bytes that a token is thought to hold at least, where texts are bounded by it."""


@dataclass(frozen=True, eq=False)
class ModelText:
    """What a model's vocabulary and tokenizer, where there are such, make of texts.

    `end_ids` end an answer. Prompts have at most `max_seq_len` tokens (None: any number); `advised` is what errors say
    to do about longer ones. Without a tokenizer texts are refused (`InputError`); without a vocabulary, guides.
    """

    vocab_size: int
    end_ids: tuple[int, ...]
    vocabulary: Vocabulary | None = None
    tokenizer: Tokenizer | None = None
    max_seq_len: int | None = None
    advised: str = RAISE

    def prompt(self, prompt: Prompt, name: str = "the prompt") -> tuple[int, ...]:
        """The token ids of a prompt, whose length is looked at before anything else. Raises `CapacityError` where it
        leaves no room for an answer, and `InputError`."""
        if isinstance(prompt, str):
            self.check_text(prompt)
            tokens = tuple(self.tokenizer_for(name).encode(prompt))
        else:
            if hasattr(prompt, "__len__"):
                self._check_length(len(prompt))
            tokens = read_ids(name, prompt)
        self.check(name, tokens)
        return tokens

    def expected(self, text: Prompt, name: str = "given") -> tuple[int, ...]:
        """The token ids of what an answer is expected to be, as far as it can be that long."""
        if isinstance(text, str):
            if self.max_seq_len is not None:
                text = text[: self.max_seq_len * self.longest]
            tokens = self.tokenizer_for(name).encode(text, add_special_tokens=False)
            return tuple(tokens[: self.max_seq_len])
        return read_ids(name, text[: self.max_seq_len])

    def check_text(self, prompt: str) -> None:
        """Raise `CapacityError` for a text of so many bytes that no tokens of this model that fit can hold it, and
        `InputError` for one that is none."""
        self._check_bytes(len(prompt))  # there are at least as many
        try:
            size = len(prompt.encode())
        except UnicodeEncodeError as error:
            raise InputError(f"the prompt is not text that UTF-8 can hold: {error.reason}") from None
        self._check_bytes(size)

    def check(self, name: str, tokens: Sequence[int]) -> None:
        """Raise `InputError` unless all are ids of this model."""
        if not tokens or (min(tokens) >= 0 and max(tokens) < self.vocab_size):
            return
        bad = next(t for t in tokens if not 0 <= t < self.vocab_size)
        raise InputError(f"{name} holds token id {bad}; ids of this model are 0 to {self.vocab_size - 1}")

    def tokenizer_for(self, what: str) -> Tokenizer:
        """The tokenizer. Raises `InputError` where there is none, so that `what` can't be a text."""
        if self.tokenizer is None:
            raise InputError(
                f"{what} can't be a text: there is no tokenizer; give token ids, or a model directory with one "
                "(Executor(tokenizer=...) takes a directory)"
            )
        return self.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The tokenizer's; None without a tokenizer, too."""
        return None if self.tokenizer is None else self.tokenizer.chat_template

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        vocabulary = self.vocabulary
        if vocabulary is None:
            return LONGEST_TOKEN
        names = (len(name.encode()) for name in vocabulary.special_names)
        # Tokenizers may drop or merge some characters, never most of a text.
        return max(LONGEST_TOKEN, *map(len, vocabulary.tokens), *names)

    def _check_bytes(self, size: int) -> None:
        if self.max_seq_len is None or size <= self.max_seq_len * self.longest:
            return
        raise CapacityError(
            f"the prompt has {size} bytes or more, but max_seq_len is {self.max_seq_len} tokens (prompt and answer), "
            f"and no token of this model holds more than {self.longest} bytes; {self.advised}"
        )

    def _check_length(self, num_tokens: int) -> None:
        if self.max_seq_len is not None:
            check_length(num_tokens, self.max_seq_len, self.advised)


def read_ids(name: str, tokens: Sequence[int]) -> tuple[int, ...]:
    """The entries of a sequence of token ids. Raises `InputError` unless they are whole numbers, 0 or more."""
    if not isinstance(tokens, Sequence) or isinstance(tokens, bytes | bytearray):
        raise InputError(f"{name} is a text or a list of token ids, not a {type(tokens).__name__}")
    return read_token_ids(name, tokens)
