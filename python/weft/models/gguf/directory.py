"""Makes the directory that stands for a GGUF file: its config and its tokenizer in the files of a model directory, and
a link to the file, which keeps the weights."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from weft.config.environ import cache_directory
from weft.core.files import MAX_JSON_BYTES
from weft.errors import ModelError, TokenizerError
from weft.models.gguf.config import config_json
from weft.models.gguf.header import read_header
from weft.models.gguf.metadata import Metadata
from weft.models.gguf.tokenizer import (
    SPLITTING_KEY,
    end_ids,
    names_no_splitting,
    tokenizer_config_json,
    tokenizer_json,
)
from weft.models.stored import GGUF
from weft.models.weights import check_weights, of_gguf, parse_config
from weft.tokenizer.files import load_tokenizer
from weft.version import __version__

_log = logging.getLogger(__name__)

TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""Names of sampling parameters in files, and in generation_config.json."""


def directory_of(file: Path) -> Path:
    """The directory that stands for a GGUF file, in weft's cache. It is made when it is missing, and again when the
    file changes.

    Raises `ModelError` or `TokenizerError` for files that weft does not read, and `ModelError` if the cache can't be
    written.
    """
    try:
        file = file.resolve(strict=True)
        found = file.stat()
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{file}: can't be read: {error}") from error
    place = cache_directory() / "gguf" / _name(file, found.st_size, found.st_mtime_ns)
    if (place / "config.json").is_file():
        return place
    contents = contents_of(file)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part = Path(mkdtemp(prefix=".part-", dir=place.parent))
        try:
            for name, data in contents.items():
                (part / name).write_bytes(data)
            (part / GGUF).symlink_to(file)
            part.chmod(0o755)  # as other directories, and not for its maker alone
            with suppress(OSError):  # another process was faster
                part.rename(place)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise ModelError(
            f"{place.parent}: can't be written ({error.strerror or error}), and a GGUF file's config and tokenizer are "
            "kept there; set WEFT_CACHE to a directory that can"
        ) from error
    if not (place / "config.json").is_file():
        raise ModelError(f"{place}: is in the way, and is no model directory; remove it")
    _remove_older(place)
    return place


def contents_of(file: Path, more: Mapping[str, Any] | None = None) -> dict[str, bytes]:
    """The files of the directory by name. `more` are further keys of config.json. Raises `ModelError` or
    `TokenizerError` unless weft can run the model."""
    header = read_header(file)
    config = {**config_json(header), **(more or {})}
    model_class, parsed = parse_config(config, f"{file}: config")
    check_weights(model_class, of_gguf(parsed, file), file)
    fields = Metadata(header)
    contents = {"config.json": _json(config), **_tokenizer(file, fields)}
    sampling = {
        key: fields.get(f"general.sampling.{name}", int if key == "top_k" else float)
        for name, key in _SAMPLING.items()
    }
    sampling = {key: value for key, value in sampling.items() if value is not None}
    if sampling.get("temperature", 0.0) > 0.0:
        sampling["do_sample"] = True
    return {**contents, "generation_config.json": _json({"eos_token_id": end_ids(fields), **sampling})}


def _tokenizer(file: Path, fields: Metadata) -> dict[str, bytes]:
    """The files of the tokenizer: made of the metadata; or those beside the file, if weft does not read its own, or if
    it does not say how text is split."""
    is_beside, is_unsure = (file.parent / TOKENIZER[0]).is_file(), names_no_splitting(fields)
    if is_beside and is_unsure:
        return _tokenizer_beside(file)
    try:
        made = {"tokenizer.json": _json(tokenizer_json(fields))}
        made |= {"tokenizer_config.json": _json(tokenizer_config_json(fields))}
    except TokenizerError:
        if not is_beside:
            raise
        return _tokenizer_beside(file)
    if is_unsure:
        _log.warning(
            "%s: has no %r, so text is split by llama.cpp's default rules, which may not be those of the model's "
            "training; get a newer file of this model, or put its tokenizer.json and tokenizer_config.json beside it",
            file,
            SPLITTING_KEY,
        )
    return made


def _tokenizer_beside(file: Path) -> dict[str, bytes]:
    load_tokenizer(file.parent)
    return {
        path.name: path.read_bytes()
        for path in (file.parent / name for name in TOKENIZER)
        if path.is_file() and path.stat().st_size <= MAX_JSON_BYTES
    }


def _json(contents: dict[str, Any]) -> bytes:
    return json.dumps(contents, indent=1, ensure_ascii=False).encode()


def _name(file: Path, size: int, mtime_ns: int) -> str:
    """The name of a file's directory. It changes with the file, with a tokenizer beside it, and with weft."""
    state = [size, mtime_ns, __version__]
    for name in TOKENIZER:
        with suppress(OSError):
            found = (file.parent / name).stat()
            state += [name, found.st_size, found.st_mtime_ns]
    path, rest = (hashlib.sha256(text.encode()).hexdigest()[:12] for text in (os.fsdecode(file), repr(state)))
    return f"{file.stem[:80]}-{path}-{rest}"


def _remove_older(place: Path) -> None:
    """Remove the directories of the file's earlier contents."""
    start = place.name.rpartition("-")[0]
    for other in place.parent.glob(f"{start}-*"):
        if other != place:
            shutil.rmtree(other, ignore_errors=True)
