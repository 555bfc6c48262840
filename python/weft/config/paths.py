"""Finds the directory of a model, by path or by a name in the catalogue."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from weft.config.catalog import CATALOG, PACKAGE_MODEL
from weft.config.environ import cache_directory
from weft.errors import ModelError

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def package_model_path() -> Path:
    """Return the directory of weft-tiny, the model bundled in the package."""
    return Path(__file__).parents[1] / "assets" / PACKAGE_MODEL


def cached_model_path(name: str) -> Path:
    """Return the directory into which `weft models get` downloads a model of the catalogue."""
    return cache_directory() / "models" / name


def model_directory(model: str | Path | None) -> Path:
    """Return the directory of a model, given by path or by a name in the catalogue. None means the bundled model. A
    directory of that name in the working directory takes precedence over the catalogue. If there is no directory,
    raises `ModelError`, which says how to get the model.
    """
    path = package_model_path() if model is None else Path(model)
    if path.is_dir():
        return path
    name = str(model)
    if name == PACKAGE_MODEL:
        return package_model_path()
    if name not in CATALOG:
        raise ModelError(_missing(path, name))
    if not (cached_model_path(name) / "config.json").is_file():
        known = CATALOG[name]
        raise ModelError(
            f"{name} ({known.title}) is not here yet; get it with: {known.command} ({known.download_mb} MB)"
        )
    return cached_model_path(name)


def _missing(path: Path, name: str) -> str:
    """Return the error message for a missing model directory."""
    names = [PACKAGE_MODEL, *CATALOG]
    if path.suffix == ".gguf" and path.is_file():
        return f"{path}: is a GGUF file; make a directory of it with: weft convert {path} DIR"
    if path.is_file():
        return f"{path}: is a file; give the directory of a Hugging Face checkpoint"
    close = get_close_matches(name, names, n=1)
    if close:
        return f"{path}: no such directory; did you mean {close[0]!r}?"
    if HUB_NAME.fullmatch(name):
        folder = name.partition("/")[2]
        return (
            f"{path}: no such directory; weft loads models from directories. To get one of the Hugging Face hub: "
            f"hf download {name} --local-dir {folder}, then give {folder!r}"
        )
    return (
        f"{path}: no such directory; give the directory of a Hugging Face checkpoint, or one of "
        f"{', '.join(map(repr, names))}"
    )
