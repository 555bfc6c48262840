"""The served models: their configuration, their construction, and the data that requests need from them."""

from __future__ import annotations

import codecs
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue

from weft.client.builder import BuiltEngine, ModelSource
from weft.client.capacity import ClientLimits
from weft.client.chat import chat_tokens
from weft.client.client import EngineClient
from weft.client.detokenizer import Detokenizer
from weft.client.generation_config import Source, sampling_defaults
from weft.client.model_text import ModelText
from weft.client.responses import Response
from weft.config import EngineConfig, Speculation, model_name
from weft.core import SamplingParams
from weft.core.request import Request
from weft.errors import InputError, ModelError, UnavailableError
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.guide import Guide
from weft.grammar.kinds.tools import tool_styles
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.models.stored import count_parameters
from weft.server.faults import FaultList
from weft.tokenizer.formats import reasoning_markers, tool_style_of
from weft.tokenizer.tokenizer import ChatTemplate

_log = logging.getLogger("weft.server")

TOOLS = re.compile(r"\btools\b")
"""Matches the variable `tools` in a chat template. A template that uses it shows tools to the model."""
UNREAD_RESPONSES = 64
"""The number of deltas queued for a slow client, above which they are merged."""


@dataclass(frozen=True)
class Family:
    """The text formats of a model family.

    `tool_style` is the format of tool calls, one of `tool_styles()`. `is_style_guessed`: neither the chat template nor
    the configuration sets one. `thinking` holds the begin and end markers of the reasoning; None for a model without
    reasoning. `shows_tools` is False if the chat template ignores `tools`. The model then never sees them.
    """

    tool_style: str = "qwen_3"
    thinking: tuple[str, str] | None = None
    is_style_guessed: bool = False
    shows_tools: bool = True


@dataclass(eq=False)
class ServedModel:
    """A running engine and the name that clients use for it.

    `defaults` holds the sampling parameters for fields that a request does not set. `default_max_tokens` limits the
    answers of chats that set no length. `handles` maps names to guides that requests may use. `place` is the model's
    position in a configuration file, for error messages. `created` is a Unix time in seconds.
    """

    name: str
    client: EngineClient
    defaults: SamplingParams
    family: Family = field(default_factory=Family)
    default_max_tokens: int | None = None
    handles: Mapping[str, Guide] = field(default_factory=dict)
    place: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    _has_warned: bool = False

    @property
    def text(self) -> ModelText:
        """The model's vocabulary and tokenizer."""
        return self.client.built.text

    @property
    def max_model_len(self) -> int:
        """The maximum number of tokens in prompt and answer together."""
        return self.client.built.config.max_seq_len

    @cached_property
    def detokenizer(self) -> Detokenizer:
        """The model's detokenizer, made at the first use."""
        text = self.text
        assert text.tokenizer is not None and text.vocabulary is not None  # every model directory has both
        return Detokenizer(text.tokenizer, text.vocabulary)

    @cached_property
    def tokens(self) -> TokenTexts:
        """Converts single tokens to strings and bytes."""
        assert self.text.vocabulary is not None
        return TokenTexts(self.text.vocabulary)

    def warm_up(self) -> None:
        """Do the work that the first requests would wait for: graphs, imports, the processes and threads that compile
        guides, the configured guides, and a short guided answer to a chat.

        Raises `Faults` with every configured guide that does not compile.
        """
        self.detokenizer.warm_up()
        if not self.client.built.warms_up:  # else the client has done it
            self.client.warm_up()
        compiler = self.client.compiler
        if compiler is not None:
            compiler.warm_up()
            try:
                compiler.wait()
            except UnavailableError as error:
                _log.warning("%s: requests with a guide are refused for now: %s", self.name, error)
            else:
                self._answer(self._compile(compiler))
        self._answer([None])

    def _compile(self, compiler: GuideCompiler) -> list[Guide]:
        """Compile the configured guides, and one guide with each grammar library. Returns the latter that compile."""
        # One submit after another without a wait, so that every compile thread starts.
        compiling = {name: compiler.submit(guide) for name, guide in self.handles.items()}
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        samples = [Guide.json_schema(schema), Guide.regex("[0-9]{2}")]
        warming = [compiler.submit(sample) for sample in samples]
        working = [
            guide for guide, compiled in zip(samples, warming, strict=True) if not compiled.exception()
        ]
        faults = FaultList()
        for name, compiled in compiling.items():
            with faults.noted(f"{_placed(self.place, self.name)}: guides.{name}: "):
                compiled.result()
        faults.check()
        return working

    def _answer(self, guides: Sequence[Guide | None]) -> None:
        """Answer a short chat, or a text if the model has no chat template, under each guide."""
        prompt: str | list[int] = "1"
        with suppress(InputError):  # no chat template, or one that needs other messages
            prompt = chat_tokens(self.text, [{"role": "user", "content": "1"}], {})
        sampling = SamplingParams(max_tokens=2, temperature=1.0)
        # The salt keeps the pages of these prompts from later requests.
        requests = [Request(prompt, sampling, guide, cache_salt="warm-up") for guide in guides]
        ended: SimpleQueue[Response] = SimpleQueue()
        responses = self.client.submit(requests, ended.put)
        for _ in responses:
            ended.get()
        for response in responses:
            if response.error is None:
                self.detokenizer.output(response)
        self.client.drop(responses)

    def warn_of_tools(self) -> None:
        """Log reasons why tool calls may be poor. Every request with tools calls this, but only the first call logs, so
        that a model without such requests logs nothing."""
        if self._has_warned:
            return
        self._has_warned = True
        family = self.family
        if family.is_style_guessed:
            _log.warning(
                "%s: the chat template shows no format of tool calls, so weft uses that of %s; "
                "--tool-style (tool_style in a configuration) sets another",
                self.name,
                family.tool_style,
            )
        if not family.shows_tools:
            _log.warning(
                "%s: the chat template does not read tools, so the model does not see them", self.name
            )

    def close(self) -> None:
        """Stop the engine and the detokenizer."""
        self.client.close()
        self.detokenizer.close()


class TokenTexts:
    """Converts single tokens to strings and bytes, for log-probabilities."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.tokens
        self._special = {number: name for name, number in vocabulary.special_names.items()}

    def bytes_of(self, token: int) -> bytes:
        """Return a token's bytes. For a special token these are the bytes of its name."""
        return self._tokens[token] or self._special.get(token, "").encode()

    def is_special(self, token: int) -> bool:
        """Return whether a token is special. Special tokens are not part of the text."""
        return not self._tokens[token]

    def text(self, token: int) -> str:
        """Return a token's string. Bytes that are not valid UTF-8 on their own become U+FFFD."""
        return self.bytes_of(token).decode(errors="replace")


class TextOffsets:
    """Computes each token's offset in the decoded text, in characters.

    A token that begins inside a character gets the offset of that character. Special tokens have no width.
    """

    def __init__(self, tokens: TokenTexts) -> None:
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._end = 0

    def next(self, token: int) -> int:
        """Return the offset of `token`, and advance past it."""
        offset = self._end
        if not self._tokens.is_special(token):
            self._end += len(self._decoder.decode(self._tokens.bytes_of(token)))
        return offset

    def end_text(self) -> None:
        """Flush the decoder at the end of a text. The next token starts another text after it."""
        self._end += len(self._decoder.decode(b"", final=True))
        self._decoder.reset()


# -- configuration and building


@dataclass(frozen=True)
class ServedModelConfig:
    """A model to serve.

    `path` is a directory or a name; None is the embedded model. `tool_style` and `thinking` override the formats of the
    chat template. `thinking` is two markers, or () for a model without reasoning. `handles` maps names to guides.
    `place` is the model's position in a configuration file, for error messages.
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


def name_of(config: ServedModelConfig) -> str:
    """Return the name that clients use for a model."""
    try:
        return config.name or model_name(config.path)
    except ModelError:  # there is no such directory; building the model says so
        return str(config.path)


def placed(config: ServedModelConfig) -> str:
    """The model's name, after its place in a configuration file, for error messages."""
    return _placed(config.place, name_of(config))


def check(config: ServedModelConfig) -> None:
    """Raise `Faults` for wrong settings."""
    faults = FaultList()
    with faults.noted():
        if config.tool_style is not None and config.tool_style not in tool_styles():
            known = ", ".join(tool_styles())
            raise InputError(f"tool_style is {config.tool_style!r}; it must be one of {known}")
    with faults.noted():
        if config.thinking is not None and len(config.thinking) not in (0, 2):
            count = len(config.thinking)
            raise InputError(f"thinking has {count} marker{'s' * (count > 1)}; it must have two, or none")
    faults.check()


def build(config: ServedModelConfig) -> ServedModel:
    """Load a model and start its engine. The process that tries guides starts in the background (`warm_up`). Raises
    `ModelError`, `TokenizerError` or `InputError`."""
    faults = FaultList()
    with faults.noted(f"{placed(config)}: "):
        check(config)
    faults.check()
    source, began = ModelSource.of(config.path), time.perf_counter()
    _log.info("loading %s …", config.path or source.path)
    defaults = sampling_defaults(source.path, config.generation_config)
    limits = ClientLimits(
        max_sequences=128,
        max_queue_size=config.max_queue_size,
        max_pending_bytes=config.max_pending_bytes,
        max_unread_responses=UNREAD_RESPONSES,
    )
    built = BuiltEngine.build(source, config.device, config.dtype, config.speculation, config.engine)
    client = EngineClient(built, limits)
    name = name_of(config)
    _log.info("%s: loaded in %.1f s: %s", name, time.perf_counter() - began, _described(built))
    return ServedModel(
        name,
        client,
        SamplingParams(**{"temperature": 1.0, **defaults}),
        family_of(built.text.chat_template, config),
        defaults.get("max_tokens"),
        config.handles,
        config.place,
    )


def warm_up(models: Iterable[ServedModel]) -> None:
    """Warm all models up. Each one's processes start while others load. Raises `Faults` (`ServedModel.warm_up`)."""
    began = time.perf_counter()
    faults = FaultList()
    for model in models:
        with faults.noted():
            model.warm_up()
    faults.check()
    _log.info("warm in %.1f s", time.perf_counter() - began)


def _described(built: BuiltEngine) -> str:
    config, model = built.config, built.model_config
    dtype = str(model.weight_dtype or model.dtype).removeprefix("torch.")
    if model.quantization is not None and not model.dequantizes:
        dtype = model.quantization.title
    num_bytes = sum(cache.num_bytes for cache in built.engine.parts.caches)
    return (
        f"{model.architecture}, {in_millions(count_parameters(built.path))} parameters in {dtype} on "
        f"{built.runtime.device}; room for {(config.num_pages - 1) * config.page_size:,} tokens in pages of up to "
        f"{in_bytes(num_bytes)}"
    )


def in_millions(count: int) -> str:
    """A number of parameters in words, such as "135 million"."""
    return f"{count / 1e6:.0f} million" if count < 1e9 else f"{count / 1e9:.1f} billion"


def in_bytes(count: int) -> str:
    """A size in words, such as "3.0 GB"."""
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"


def _placed(place: str, name: str) -> str:
    return f"{place} ({name})" if place else name


def family_of(template: ChatTemplate | None, config: ServedModelConfig) -> Family:
    """Detect the model family's formats from the chat template. The configuration overrides them."""
    shown_style = tool_style_of(template)
    style = config.tool_style or shown_style or Family.tool_style
    tool_template = (
        (template.get("tool_use") or template.get("default")) if isinstance(template, dict) else template
    )
    thinking = reasoning_markers(template)
    if config.thinking is not None:
        thinking = (config.thinking[0], config.thinking[1]) if config.thinking else None
    return Family(
        style,
        thinking,
        is_style_guessed=config.tool_style is None and shown_style is None,
        shows_tools=tool_template is not None and TOOLS.search(tool_template) is not None,
    )
