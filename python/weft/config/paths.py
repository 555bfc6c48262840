"""Finds the directory of a model, by path, by a name in the catalogue, or by its name on the Hugging Face hub. A GGUF
file is a model, too: a directory in weft's cache stands for it."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from weft.config.catalog import CATALOG, PACKAGE_MODEL
from weft.config.environ import cache_directory
from weft.core.files import inside, read_json
from weft.errors import ModelError
from weft.registry import MODEL_FILES, load

WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
"""The weights of a model directory: one file, or the index that names several."""
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def package_model_path() -> Path:
    """Return the directory of weft-tiny, the model bundled in the package."""
    return Path(__file__).parents[1] / "assets" / PACKAGE_MODEL


def cached_model_path(name: str) -> Path:
    """Return the directory into which `weft models get` downloads a model of the catalogue."""
    return cache_directory() / "models" / name


def hub_directory(repository: str) -> Path | None:
    """Return the directory of a model of the Hugging Face hub in the local cache of huggingface_hub. None if the cache
    does not have it, or only a part of its weights. Does not use the network."""
    if not HUB_NAME.fullmatch(repository):
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(repository, "config.json")
    except HFValidationError:  # the hub has further rules for names
        return None
    if not isinstance(config, str):
        return None
    directory = Path(config).parent
    return directory if all((directory / file).is_file() for file in weight_files(directory)) else None


def weight_files(directory: Path) -> list[str]:
    """Return the names of the files with weights in a model directory: those that its index names, or
    model.safetensors. They may be missing. Raises `ModelError` for an index with other names than those of files inside
    the directory."""
    index = directory / WEIGHTS_INDEX
    if not index.is_file():
        return [WEIGHTS]
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict):
        raise ModelError(f"{index}: 'weight_map' is missing; it must map tensor names to files")
    return sorted({str(inside(directory, file, index).relative_to(directory)) for file in places.values()})


def model_name(model: str | Path | None) -> str:
    """Return the name of a model: its name in the catalogue or on the hub, or the name of its directory or file."""
    path = model_directory(model)
    if model is not None and Path(model).is_file():
        return Path(model).stem
    return path.name if model is None or Path(model).is_dir() else str(model)


def model_directory(model: str | Path | None) -> Path:
    """Return the directory of a model, given by path, by a name in the catalogue, or by a name of the Hugging Face hub
    (ORG/NAME). None means the bundled model. A directory of that name in the working directory takes precedence. For a
    GGUF file, the result is a directory in weft's cache, which is made if it is missing. If there is no model, raises
    `ModelError`, which says how to get it. Does not use the network.
    """
    path = package_model_path() if model is None else Path(model)
    if path.is_dir():
        return path
    if path.suffix in MODEL_FILES and path.is_file():
        made: Path = load("model files", path.suffix)(path)
        return made
    name = str(model)
    if name == PACKAGE_MODEL:
        return package_model_path()
    known = CATALOG.get(name)
    if known is None:
        directory = hub_directory(name)
        if directory is None:
            raise ModelError(_missing(path, name))
        return directory
    directory = hub_directory(known.repository) if known.repository else cached_model_path(name)
    if directory is None or not (directory / "config.json").is_file():
        raise ModelError(
            f"{name} ({known.title}) is not here yet; get it with: {known.command} ({known.size})"
        )
    return directory


def _missing(path: Path, name: str) -> str:
    """Return the error message for a missing model directory."""
    names = [PACKAGE_MODEL, *CATALOG]
    if path.suffix == ".toml":
        return f"{path}: is not a model; a server takes a configuration by: weft serve --config {path}"
    if path.is_file():
        return f"{path}: is a file; give a GGUF file (*.gguf), or the directory of a Hugging Face checkpoint"
    if HUB_NAME.fullmatch(name):
        return f"{path}: no such directory; to get a model of the Hugging Face hub: weft models get {name}"
    close = get_close_matches(name, names, n=1)
    if close:
        return f"{path}: no such directory; did you mean {close[0]!r}?"
    if path.suffix in MODEL_FILES:
        return f"{path}: there is no such file"
    return (
        f"{path}: no such directory; give the directory of a Hugging Face checkpoint, a GGUF file, the name of a "
        f"checkpoint on the hub (ORG/NAME), or one of {', '.join(map(repr, names))}"
    )
