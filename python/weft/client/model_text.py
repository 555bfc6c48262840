"""A model's vocabulary and tokenizer, and the conversion of prompts to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from weft.core import read_token_ids
from weft.core.prompts import Prompt
from weft.core.request import OWN_NAMES, FieldNames
from weft.engine.admission import check_length, check_token_ids, shorten
from weft.errors import CapacityError, InputError
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.tokenizer.tokenizer import ChatTemplate, Tokenizer

LONGEST_TOKEN = 16
"""The least value of `ModelText.longest`, in bytes."""


@dataclass(frozen=True, eq=False)
class ModelText:
    """A model's vocabulary and tokenizer, each optional. Text needs a tokenizer (`InputError` without one), and guides
    need a vocabulary.

    `end_ids` end an answer. A prompt and its answer have at most `max_seq_len` tokens together (None: any number).
    `can_grow` says whether the model allows a longer limit; only error messages use it.
    """

    vocab_size: int
    end_ids: tuple[int, ...]
    vocabulary: Vocabulary | None = None
    tokenizer: Tokenizer | None = None
    max_seq_len: int | None = None
    can_grow: bool = True

    def prompt(self, prompt: Prompt, names: FieldNames = OWN_NAMES) -> tuple[int, ...]:
        """The token ids of a prompt. Raises `CapacityError` for ids that leave no room for an answer, and for a text of
        too many bytes (`check_text`). Raises `InputError` for a prompt that is not valid for this model."""
        # The length is checked first: a prompt that is far too long must not cost time or memory.
        if isinstance(prompt, str):
            self.check_text(prompt, names)
            tokens = tuple(self.tokenizer_for(names.prompt).encode(prompt))
        else:
            if hasattr(prompt, "__len__"):
                self._check_length(len(prompt), names)
            tokens = read_ids(names.prompt, prompt)
        self.check(names.prompt, tokens)
        return tokens

    def expected(self, text: Prompt, name: str = "given") -> tuple[int, ...]:
        """The token ids of an expected answer, cut to `max_seq_len`."""
        if isinstance(text, str):
            if self.max_seq_len is not None:
                text = text[: self.max_seq_len * self.longest]
            tokens = self.tokenizer_for(name).encode(text, add_special_tokens=False)
            return tuple(tokens[: self.max_seq_len])
        return read_ids(name, text[: self.max_seq_len])

    def check_text(self, prompt: str, names: FieldNames = OWN_NAMES) -> None:
        """Raise `CapacityError` for a text of more than `max_seq_len * longest` bytes, which can't fit, and
        `InputError` for text that UTF-8 can't encode."""
        # A character takes at least one byte in UTF-8, so this check avoids encoding a text that is far too long.
        self._check_bytes(len(prompt), names)
        try:
            size = len(prompt.encode())
        except UnicodeEncodeError as error:
            raise InputError(f"the prompt is not text that UTF-8 can hold: {error.reason}") from None
        self._check_bytes(size, names)

    def check(self, name: str, tokens: Sequence[int]) -> None:
        """Raise `InputError` unless all tokens are ids of this model."""
        check_token_ids(name, tokens, self.vocab_size)

    def tokenizer_for(self, what: str) -> Tokenizer:
        """The tokenizer. Raises `InputError` without one; the message says that `what` can't be a text."""
        if self.tokenizer is None:
            raise InputError(
                f"{what} can't be a text: there is no tokenizer; give token ids, or a model directory with one "
                "(Executor(tokenizer=...) takes a directory)"
            )
        return self.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The tokenizer's chat template; None without a template or a tokenizer."""
        return None if self.tokenizer is None else self.tokenizer.chat_template

    @cached_property
    def longest(self) -> int:
        """The length of the longest token in bytes, at least `LONGEST_TOKEN`."""
        vocabulary = self.vocabulary
        if vocabulary is None:
            return LONGEST_TOKEN
        names = (len(name.encode()) for name in vocabulary.special_names)
        # The lower bound allows for tokenizers that drop or merge some characters of a text.
        return max(LONGEST_TOKEN, *map(len, vocabulary.tokens), *names)

    def _check_bytes(self, size: int, names: FieldNames) -> None:
        if self.max_seq_len is None or size <= self.max_seq_len * self.longest:
            return
        raise CapacityError(
            f"the prompt has {size} bytes or more, but {names.label('max_seq_len')} is {self.max_seq_len} tokens "
            f"(prompt and answer), and no token of this model holds more than {self.longest} bytes; "
            f"{shorten(self.can_grow, names)}"
        )

    def _check_length(self, num_tokens: int, names: FieldNames) -> None:
        if self.max_seq_len is not None:
            check_length(num_tokens, self.max_seq_len, self.can_grow, names)


def read_ids(name: str, tokens: Sequence[int]) -> tuple[int, ...]:
    """The entries of a sequence of token ids as a tuple. Raises `InputError` unless they are whole numbers, 0 or
    more."""
    if not isinstance(tokens, Sequence) or isinstance(tokens, bytes | bytearray):
        raise InputError(f"{name} is a text or a list of token ids, not a {type(tokens).__name__}")
    return read_token_ids(name, tokens)
