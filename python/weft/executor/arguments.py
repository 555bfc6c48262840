"""Reads the arguments of `Executor` in TensorRT-LLM's several forms."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_safetensors

from weft.client.builder import ModelSource
from weft.errors import InputError, ModelError
from weft.executor.types import ExecutorConfig, ModelType
from weft.grammar.vocabulary.materials import VocabularyMaterials
from weft.grammar.vocabulary.tokenizer import Vocabulary

FORMS = (
    "Executor(model_path, model_type, executor_config), or Executor(engine_buffer, json_config_str, model_type, "
    "executor_config)"
)
ENCODERS = "models have no encoder; give one decoder's checkpoint"


@dataclass(frozen=True)
class Arguments:
    """An executor's arguments: the source of its model, and its config."""

    source: ModelSource
    config: ExecutorConfig

    @classmethod
    def read(cls, given: tuple[Any, ...], named: dict[str, Any]) -> Arguments:
        """Read the positional (`given`) and named arguments of a call, in one of TensorRT-LLM's forms (`FORMS`) or
        weft's. Raises `InputError` for other arguments, and `ModelError` for a model that can't be found or read."""
        places = ["model", "model_type", "executor_config"]
        if (
            any(isinstance(one, bytes | bytearray | memoryview) for one in given[:1])
            or "engine_buffer" in named
        ):
            places = ["engine_buffer", "json_config_str", "model_type", "executor_config", "managed_weights"]
        elif len(given) > 1 and isinstance(given[1], ExecutorConfig):
            places = ["model", "executor_config"]
        if len(given) > len(places):
            raise InputError(f"{len(given)} arguments are given by position; the forms are {FORMS}")
        asked = dict(zip(places, given, strict=False))
        for name, value in named.items():
            name = _OTHER_NAMES.get(name, name)
            if name in asked:
                raise InputError(f"{name} is given twice; the forms are {FORMS}")
            asked[name] = value
        if any(name.startswith(("encoder_", "decoder_")) for name in asked):
            raise InputError(f"an executor of an encoder and a decoder is not supported: {ENCODERS}")
        unknown = sorted(set(asked) - _KNOWN)
        if unknown:
            raise InputError(f"Executor has no argument {unknown[0]!r}; it has {', '.join(sorted(_KNOWN))}")
        config = _config(asked)
        return cls(_source(asked, _materials(config)), config)


_OTHER_NAMES = {"model_path": "model", "config": "executor_config"}
_KNOWN = {"model", "model_type", "executor_config", "engine_buffer", "json_config_str", "managed_weights"}
_KNOWN |= {"config_json", "tokenizer"}


def _materials(config: ExecutorConfig) -> VocabularyMaterials | None:
    """The vocabulary that the config gives for guides. None: guides use the model's vocabulary."""
    guided = config.guided_decoding_config
    if guided is None:
        return None
    given = (guided.encoded_vocab, guided.tokenizer_str, guided.stop_token_ids)
    return None if given == (None, None, None) else VocabularyMaterials(*given)


def _source(asked: Mapping[str, Any], guides: VocabularyMaterials | None) -> ModelSource:
    tokenizer: str | Path | Vocabulary | None = asked.get("tokenizer")
    if "engine_buffer" not in asked:
        return _on_disk(asked.get("model"), asked.get("config_json"), tokenizer, guides)
    weights = _weights(asked["engine_buffer"]) | {
        name: torch.as_tensor(value) for name, value in (asked.get("managed_weights") or {}).items()
    }
    try:
        config = json.loads(asked.get("json_config_str") or "")
    except (TypeError, ValueError):
        config = None
    if not isinstance(config, dict):
        raise InputError("json_config_str is no JSON object; give the text of the checkpoint's config.json")
    return ModelSource.of(weights, config, tokenizer, guides)


def _on_disk(model: Any, config_json: Any, tokenizer: Any, guides: VocabularyMaterials | None) -> ModelSource:
    is_path = isinstance(model, str | Path)
    if is_path and any(Path(model).glob("*.engine")) and not any(Path(model).glob("*.safetensors")):
        raise ModelError(
            f"{model}: holds an engine built by TensorRT-LLM, which weft does not read; give the Hugging Face "
            "checkpoint it was built from"
        )
    try:
        return ModelSource.of(model, config_json, tokenizer, guides)
    except ModelError as error:
        if is_path and not Path(model).exists():
            raise ModelError(f"File does not exist: {error}") from None
        raise


def _weights(buffer: bytes) -> dict[str, torch.Tensor]:
    try:
        return dict(read_safetensors(bytes(buffer)))
    except (SafetensorError, TypeError) as error:
        raise ModelError(
            f"engine_buffer is no safetensors file ({error}); give the bytes of the checkpoint's model.safetensors. "
            "Engines built by TensorRT-LLM are not read"
        ) from None


def _config(asked: Mapping[str, Any]) -> ExecutorConfig:
    """The executor's settings. They are a copy, so that later changes of the caller's object have no effect."""
    kind, config = asked.get("model_type"), asked.get("executor_config")
    if isinstance(kind, ExecutorConfig):
        if config is not None:
            raise InputError("two configs are given; give one, after the model or after its ModelType")
        kind, config = None, kind
    if not isinstance(kind, ModelType | None):
        raise InputError(f"model_type is {kind!r}; give ModelType.DECODER_ONLY")
    if kind is not None:
        kind.check()
    if config is None:
        return ExecutorConfig()
    if not isinstance(config, ExecutorConfig):
        raise InputError(f"executor_config is {config!r}; give an ExecutorConfig")
    return config.snapshot()


def seconds_of(timeout: timedelta | float | None) -> float | None:
    """A timeout in seconds, 0 or more; None if it is None or infinite. Raises `InputError` for another value."""
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or math.isnan(seconds):
        raise InputError(f"timeout is {timeout!r}; it must be seconds, a timedelta, or None")
    return None if seconds == math.inf else max(float(seconds), 0.0)
