"""Where models are: by path, or by the name of the one inside the package."""

from __future__ import annotations

from pathlib import Path

from weft.errors import ModelError

PACKAGE_MODEL = "weft-tiny"
"""The name of the model inside the package."""


def package_model_path() -> Path:
    """The directory of weft-tiny, the model inside the package."""
    return Path(__file__).parents[1] / "assets" / PACKAGE_MODEL


def model_directory(model: str | Path | None) -> Path:
    """The directory of a model, by its path or by the name of the one inside the package; None is that one, too. A
    directory of that name in the working directory comes first. Raises `ModelError` where there is none.
    """
    path = package_model_path() if model is None else Path(model)
    if not path.is_dir() and str(model) == PACKAGE_MODEL:
        path = package_model_path()
    if not path.is_dir():
        raise ModelError(
            f"{path}: no such directory; give the directory of a Hugging Face checkpoint, or {PACKAGE_MODEL!r}"
        )
    return path
