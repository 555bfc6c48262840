"""Builds what a server answers with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from weft.client.builder import BuiltEngine, ModelSource
from weft.client.capacity import ClientLimits
from weft.client.client import EngineClient
from weft.client.generation_config import Source, sampling_defaults
from weft.config import EngineConfig, Speculation
from weft.core import SamplingParams
from weft.errors import GuideError, InputError, UnavailableError
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.guide import Guide
from weft.grammar.kinds.tool_style import tool_style_of
from weft.grammar.kinds.tools import tool_styles
from weft.parsing import reasoning_markers
from weft.server.served import Family, ServedModel
from weft.tokenizer.tokenizer import ChatTemplate

TOOLS = re.compile(r"\btools\b")
"""The variable by which a template tells a model of tools."""
UNREAD_RESPONSES = 64
"""Of a client that reads slowly so many increments are kept before they are merged."""


@dataclass(frozen=True)
class ModelConfig:
    """A model to serve: `path` is a directory or a name. `tool_style` and `thinking` (two markers, or () for a model
    that does not think) stand in for what its chat template tells. `place` is where a file says all this, as errors
    name it."""

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
    """What clients call a model. Raises `ModelError`."""
    return config.name or ModelSource.of(config.path).path.name


def check(config: ModelConfig) -> None:
    """Raise `InputError` for what can be told without the model."""
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
        built.compiler.warm_up()  # rather than in the first guided request
        _compile(built.compiler, config)
    client = EngineClient(built, limits)
    if built.compiler is not None:
        with suppress(UnavailableError):  # guides are refused until it is there
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
    """Compile a configuration's guides, so that what is wrong with one is told before the server listens."""
    for name, guide in config.handles.items():
        try:
            compiler.compile(guide)
        except GuideError as error:
            raise _wrong(config, f"guides.{name}: {error}") from None


def _wrong(config: ModelConfig, message: str) -> InputError:
    """An error of a model's configuration, which says whose it is."""
    name = name_of(config)
    return InputError(f"{config.place} ({name}): {message}" if config.place else f"{name}: {message}")


def family_of(template: ChatTemplate | None, config: ModelConfig) -> Family:
    """What a chat template tells of a family, and what the config says instead."""
    own = tool_style_of(template)
    style = config.tool_style or own or Family.tool_style
    for_tools = (
        (template.get("tool_use") or template.get("default")) if isinstance(template, dict) else template
    )
    plain = template.get("default") if isinstance(template, dict) else template
    thinking = reasoning_markers(plain) if plain else None
    if config.thinking is not None:
        thinking = (config.thinking[0], config.thinking[1]) if config.thinking else None
    return Family(
        style,
        thinking,
        is_style_guessed=config.tool_style is None and own is None,
        is_told_of_tools=for_tools is not None and TOOLS.search(for_tools) is not None,
    )
