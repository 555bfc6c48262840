"""A model that the server answers with: an engine, its texts, and what its family writes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from weft.client.client import EngineClient
from weft.client.detokenizer import Detokenizer
from weft.client.model_text import ModelText
from weft.core import SamplingParams
from weft.grammar.guide import Guide
from weft.grammar.vocabulary.tokenizer import Vocabulary

NO_GUIDES: Mapping[str, Guide] = {}


@dataclass(frozen=True)
class Family:
    """What a model's family writes: the format of its tool calls (one of `tool_styles()`), and what its thinking stands
    between (None: it does not think)."""

    tool_style: str = "qwen_3"
    thinking: tuple[str, str] | None = None


@dataclass(eq=False)
class ServedModel:
    """An engine under a name. `defaults` are the sampling parameters of a request that names none, and
    `default_max_tokens` bounds the answers of chats that name no length; `handles` are guides that requests may
    name."""

    name: str
    client: EngineClient
    defaults: SamplingParams
    family: Family = field(default_factory=Family)
    default_max_tokens: int | None = None
    handles: Mapping[str, Guide] = field(default_factory=lambda: NO_GUIDES)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def text(self) -> ModelText:
        """Its vocabulary and tokenizer."""
        return self.client.built.text

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer."""
        length = self.client.built.config.max_seq_len
        assert length is not None
        return length

    @cached_property
    def detokenizer(self) -> Detokenizer:
        """Writes its texts."""
        text = self.text
        assert text.tokenizer is not None and text.vocabulary is not None  # a directory has them
        return Detokenizer(text.tokenizer, text.vocabulary)

    @cached_property
    def tokens(self) -> TokenTexts:
        """How its tokens are shown."""
        assert self.text.vocabulary is not None
        return TokenTexts(self.text.vocabulary)

    def close(self) -> None:
        """End its engine."""
        self.client.close()
        self.detokenizer.close()


class TokenTexts:
    """Tokens as texts and bytes, as log-probabilities show them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.tokens
        self._special = {number: name for name, number in vocabulary.special_names.items()}

    def bytes_of(self, token: int) -> bytes:
        """What it holds; of a special token its name."""
        return self._tokens[token] or self._special.get(token, "").encode()

    def is_special(self, token: int) -> bool:
        """Whether it is no part of text."""
        return not self._tokens[token]

    def width(self, token: int) -> int:
        """How many characters of text it is about; special ones are not in it."""
        return len(self._tokens[token].decode(errors="replace"))

    def text(self, token: int) -> str:
        """Its text; bytes that are no UTF-8 by themselves are replaced."""
        return self.bytes_of(token).decode(errors="replace")
