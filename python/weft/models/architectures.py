"""The code that runs the model of a config.json: weft's module for the architecture, or that of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.core.files import read_json
from weft.errors import ModelError
from weft.models.base import Model
from weft.models.config import ModelConfig
from weft.models.fields import Fields, UnsupportedConfig
from weft.models.gguf.names import switches
from weft.models.gguf.parts import read_model_header
from weft.models.quantized.ggml import Ggml
from weft.models.quantized.parse import read_model_config, refuse_quantized
from weft.models.stored import gguf_file
from weft.registry import MODELS, load


def read_config(directory: Path) -> tuple[type[Model], ModelConfig]:
    """The model class of a directory's architecture, and the parsed config. Raises `ModelError`."""
    where = directory / "config.json"
    if not where.exists() and (directory / "adapter_config.json").is_file():
        base = read_json(directory / "adapter_config.json").get("base_model_name_or_path")
        raise ModelError(
            f"{directory}: this is a LoRA adapter (adapter_config.json), not a model; merge it into its base model"
            f"{f' {base}' if isinstance(base, str) else ''} (peft: merge_and_unload), and give the directory of that"
        )
    model_class, config = parse_config(read_model_config(directory), str(where))
    packed = gguf_file(directory)
    return model_class, config if packed is None else of_gguf(config, packed)


def of_gguf(config: ModelConfig, file: Path) -> ModelConfig:
    """The config of a model whose weights are in a GGUF file. `config` says the rest. Raises `ModelError`."""
    if config.why_generic:
        raise ModelError(f"{file}: weft runs GGUF files by modules of its own only: {config.why_generic}")
    return replace(config, quantization=Ggml(), **switches(read_model_header(file)))


def parse_config(data: Mapping[str, Any], where: str) -> tuple[type[Model], ModelConfig]:
    """The model class and the config for the contents of a config.json. `where` names the file in errors
    (`ModelError`)."""
    names = data.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelError(
            f"{where}: 'architectures' is {names!r}; it must name one, such as ['LlamaForCausalLM']"
        )
    native: type[Model] | None = load("models", names[0]) if names[0] in MODELS else None
    unsupported, why = None, f"weft has no module of its own for {names[0]}"
    if native is not None:
        try:
            return native, native.parse_config(data, where)
        except UnsupportedConfig as error:
            unsupported, why = error, str(error)
    try:
        refuse_quantized(Fields(data, where))
    except ModelError as error:
        if unsupported is None:
            raise
        raise ModelError(
            f"{unsupported}. transformers' code, which may run such a model, needs one that is not quantised"
        ) from error
    generic: type[Model] = load("generic models", "transformers")
    try:
        return generic, replace(generic.parse_config(data, where), why_generic=why)
    except ModelError:
        if unsupported is not None:
            raise unsupported from None
        raise


def how_it_runs(model: Model) -> tuple[str, str]:
    """The code that runs a model, and the reason."""
    config, kind = model.config, type(model)
    if not config.why_generic:
        return f"{kind.__module__}.{kind.__name__}", f"weft has a module of its own for {config.architecture}"
    return (
        f"transformers' {config.architecture}, over weft's pages and operations (slower)",
        config.why_generic,
    )
