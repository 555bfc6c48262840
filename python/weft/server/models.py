"""Models that the server answers with: how one is configured, built, and used by requests."""

from __future__ import annotations

import codecs
import logging
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from weft.client.builder import BuiltEngine, ModelSource
from weft.client.capacity import ClientLimits
from weft.client.client import EngineClient
from weft.client.detokenizer import Detokenizer
from weft.client.generation_config import Source, sampling_defaults
from weft.client.model_text import ModelText
from weft.config import EngineConfig, Speculation
from weft.core import SamplingParams
from weft.errors import GuideError, InputError, UnavailableError
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.guide import Guide
from weft.grammar.kinds.tool_style import tool_style_of
from weft.grammar.kinds.tools import tool_styles
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.parsing import reasoning_markers
from weft.tokenizer.tokenizer import ChatTemplate

_log = logging.getLogger("weft.server")

TOOLS = re.compile(r"\btools\b")
"""A template that uses this variable shows tools to the model."""
UNREAD_RESPONSES = 64
"""Deltas kept for a slow client before they are merged."""


@dataclass(frozen=True)
class Family:
    """Formats that a model's family uses.

    `tool_style` is the format of its tool calls, one of `tool_styles()`. It is guessed if neither the chat template nor
    the configuration gives one. `thinking` are the markers around its thinking; None if it does not think.
    `shows_tools` is False if the chat template does not read `tools`, so that the model does not know of them.
    """

    tool_style: str = "qwen_3"
    thinking: tuple[str, str] | None = None
    is_style_guessed: bool = False
    shows_tools: bool = True


@dataclass(eq=False)
class ServedModel:
    """A running engine under a name.

    `defaults` are the sampling parameters of a request that gives none. `default_max_tokens` bounds the answers of
    chats that give no length. `handles` are guides that requests may use by name. `created` is a Unix time in seconds.
    """

    name: str
    client: EngineClient
    defaults: SamplingParams
    family: Family = field(default_factory=Family)
    default_max_tokens: int | None = None
    handles: Mapping[str, Guide] = field(default_factory=dict)
    created: int = field(default_factory=lambda: int(time.time()))
    _has_warned: bool = False

    @property
    def text(self) -> ModelText:
        """The vocabulary and the tokenizer."""
        return self.client.built.text

    @property
    def max_model_len(self) -> int:
        """Limit for the tokens of prompt and answer together."""
        return self.client.built.config.max_seq_len

    @cached_property
    def detokenizer(self) -> Detokenizer:
        """Turns tokens into text."""
        text = self.text
        assert text.tokenizer is not None and text.vocabulary is not None  # every model directory has both
        return Detokenizer(text.tokenizer, text.vocabulary)

    @cached_property
    def tokens(self) -> TokenTexts:
        """Tokens one by one, as texts and bytes."""
        assert self.text.vocabulary is not None
        return TokenTexts(self.text.vocabulary)

    def warn_of_tools(self) -> None:
        """Log why tool calls may be poor. Called at each request with tools, and logs at the first: a model that serves
        no tools needs no warning."""
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
        if not family.shows_tools:
            _log.warning("%s: the chat template does not read tools; the model is told of none", self.name)

    def close(self) -> None:
        """Stop the engine."""
        self.client.close()
        self.detokenizer.close()


class TokenTexts:
    """Single tokens as texts and bytes, as log-probabilities show them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.tokens
        self._special = {number: name for name, number in vocabulary.special_names.items()}

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token; the name of a special token."""
        return self._tokens[token] or self._special.get(token, "").encode()

    def is_special(self, token: int) -> bool:
        """Whether a token is special, and so not part of the text."""
        return not self._tokens[token]

    def text(self, token: int) -> str:
        """The text of a token. Bytes that are not UTF-8 on their own are replaced."""
        return self.bytes_of(token).decode(errors="replace")


class TextOffsets:
    """Offsets of tokens in the text that they form, in characters.

    A token that begins inside a character has the offset of that character. Special tokens take no space.
    """

    def __init__(self, tokens: TokenTexts) -> None:
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._end = 0

    def next(self, token: int) -> int:
        """The offset of the next token."""
        offset = self._end
        if not self._tokens.is_special(token):
            self._end += len(self._decoder.decode(self._tokens.bytes_of(token)))
        return offset

    def end_text(self) -> None:
        """End this text; the next token begins another one behind it."""
        self._end += len(self._decoder.decode(b"", final=True))
        self._decoder.reset()


# -- configuration and building


@dataclass(frozen=True)
class ModelConfig:
    """A model to serve.

    `path` is a directory or a name; None is the embedded model. `tool_style` and `thinking` (two markers, or () for a
    model that does not think) override what the chat template shows. `place` is the model's place in a configuration
    file, for errors.
    """

    path: str | Path | None = None
    name: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    speculation: Speculation = field(default_factory=Speculation.none)
    engine: EngineConfig = field(
        default_factory=lambda: EngineConfig(untrusted_guides=True, shares_slots=True)
    )
    max_queue_size: int = 1024
    max_pending_bytes: int = 1 << 30
    generation_config: Source = "auto"
    tool_style: str | None = None
    thinking: tuple[str, ...] | None = None
    handles: Mapping[str, Guide] = field(default_factory=dict)
    place: str = ""


def name_of(config: ModelConfig) -> str:
    """The name that clients use for a model. Raises `ModelError`."""
    return config.name or ModelSource.of(config.path).path.name


def check(config: ModelConfig) -> None:
    """Raise `InputError` for faults that show without loading the model."""
    if config.tool_style is not None and config.tool_style not in tool_styles():
        known = ", ".join(tool_styles())
        raise _wrong(config, f"tool_style is {config.tool_style!r}; it must be one of {known}")
    if config.thinking is not None and len(config.thinking) not in (0, 2):
        count = len(config.thinking)
        raise _wrong(config, f"thinking has {count} marker{'s' * (count > 1)}; it must have two, or none")


def build(config: ModelConfig) -> ServedModel:
    """Load a model and start its engine. Raises `ModelError`, `TokenizerError` or `InputError`."""
    check(config)
    source = ModelSource.of(config.path)
    defaults = sampling_defaults(source.path, config.generation_config)
    limits = ClientLimits(
        max_sequences=128,
        max_queue_size=config.max_queue_size,
        max_pending_bytes=config.max_pending_bytes,
        max_unread_responses=UNREAD_RESPONSES,
    )
    built = BuiltEngine.build(source, config.device, config.dtype, config.speculation, config.engine)
    if built.compiler is not None:
        built.compiler.warm_up()  # else the first guided request would pay for it
        _compile(built.compiler, config)
    client = EngineClient(built, limits)
    if built.compiler is not None:
        with suppress(UnavailableError):  # the compiler refuses guides until it is ready
            built.compiler.wait()
    return ServedModel(
        name_of(config),
        client,
        SamplingParams(**{"temperature": 1.0, **defaults}),
        family_of(built.text.chat_template, config),
        defaults.get("max_tokens"),
        config.handles,
    )


def _compile(compiler: GuideCompiler, config: ModelConfig) -> None:
    """Compile the guides of a configuration, so that a wrong one is reported before the server listens."""
    for name, guide in config.handles.items():
        try:
            compiler.compile(guide)
        except GuideError as error:
            raise _wrong(config, f"guides.{name}: {error}") from None


def _wrong(config: ModelConfig, message: str) -> InputError:
    """An error in a model's configuration. Its message names the model."""
    name = name_of(config)
    return InputError(f"{config.place} ({name}): {message}" if config.place else f"{name}: {message}")


def family_of(template: ChatTemplate | None, config: ModelConfig) -> Family:
    """The formats that a chat template shows, unless the configuration gives others."""
    shown_style = tool_style_of(template)
    style = config.tool_style or shown_style or Family.tool_style
    tool_template = (
        (template.get("tool_use") or template.get("default")) if isinstance(template, dict) else template
    )
    default_template = template.get("default") if isinstance(template, dict) else template
    thinking = reasoning_markers(default_template) if default_template else None
    if config.thinking is not None:
        thinking = (config.thinking[0], config.thinking[1]) if config.thinking else None
    return Family(
        style,
        thinking,
        is_style_guessed=config.tool_style is None and shown_style is None,
        shows_tools=tool_template is not None and TOOLS.search(tool_template) is not None,
    )
