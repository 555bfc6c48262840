"""A model that the server answers with: an engine, its texts, and what its family writes."""

from __future__ import annotations

import codecs
import logging
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

_log = logging.getLogger("weft.server")

NO_GUIDES: Mapping[str, Guide] = {}


@dataclass(frozen=True)
class Family:
    """What a model's family writes: the format of its tool calls (one of `tool_styles()`), and what its thinking stands
    between (None: it does not think). The format is guessed where neither the chat template shows one nor the
    configuration names one, and a template that does not read `tools` tells the model of none."""

    tool_style: str = "qwen_3"
    thinking: tuple[str, str] | None = None
    is_style_guessed: bool = False
    is_told_of_tools: bool = True


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
    _has_warned: bool = False

    @property
    def text(self) -> ModelText:
        """Its vocabulary and tokenizer."""
        return self.client.built.text

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer."""
        return self.client.built.config.max_seq_len

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

    def warn_of_tools(self) -> None:
        """Log, at the first request with tools, why calls may be poor: not at the start, since models without tools are
        served, too."""
        if self._has_warned:
            return
        self._has_warned = True
        family = self.family
        if family.is_style_guessed:
            _log.warning(
                "%s: the chat template shows no format of tool calls; calls are asked for in the form of %s, and "
                "--tool-style (tool_style in a configuration) sets another",
                self.name,
                family.tool_style,
            )
        if not family.is_told_of_tools:
            _log.warning("%s: the chat template does not read tools; the model is told of none", self.name)

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

    def text(self, token: int) -> str:
        """Its text; bytes that are no UTF-8 by themselves are replaced."""
        return self.bytes_of(token).decode(errors="replace")


class TextOffsets:
    """Where tokens begin in the text that they make, in characters. One that begins within a character begins where
    that does; special ones are not in the text."""

    def __init__(self, tokens: TokenTexts) -> None:
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = 0

    def next(self, token: int) -> int:
        """Where the next token begins."""
        at = self._at
        if not self._tokens.is_special(token):
            self._at += len(self._decoder.decode(self._tokens.bytes_of(token)))
        return at

    def end(self) -> None:
        """The text ends here, and what follows is another, after it."""
        self._at += len(self._decoder.decode(b"", final=True))
        self._decoder.reset()
