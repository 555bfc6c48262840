"""Makes the directory that stands for a GGUF file: its config and its tokenizer in the files of a model directory, and
a link to the file, which keeps the weights."""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from weft.config.environ import cache_directory
from weft.core.files import MAX_JSON_BYTES
from weft.errors import ModelError, TokenizerError
from weft.models.architectures import of_gguf, parse_config
from weft.models.gguf.config import config_json
from weft.models.gguf.metadata import Metadata
from weft.models.gguf.parts import PART, name_of_part, part_files, read_model_header
from weft.models.gguf.tokenizer import (
    SPLITTING_KEY,
    end_ids,
    names_no_splitting,
    tokenizer_config_json,
    tokenizer_json,
)
from weft.models.loading import check_weights
from weft.models.stored import GGUF
from weft.tokenizer.files import load_tokenizer
from weft.version import __version__

_log = logging.getLogger(__name__)

TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
KEPT_S = 24 * 3600
"""The seconds since its last use for which a directory is kept, though its file has changed."""
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
    file changes. For a part of a model it stands for all parts.

    Raises `ModelError` or `TokenizerError` for files that weft does not read, and `ModelError` if the cache can't be
    written.
    """
    try:
        files = part_files(file.absolute())
        targets = [each.resolve(strict=True) for each in files]
        found = [each.stat() for each in targets]
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{file}: can't be read: {error}") from error
    # Links may lead to files with other names, such as those of a hub's cache, and parts are found by their names.
    file = targets[0] if len(files) == 1 else files[0]
    place = cache_directory() / "gguf" / _name(file, [(each.st_size, each.st_mtime_ns) for each in found])
    if (place / "config.json").is_file():
        with suppress(OSError):
            os.utime(place)  # it is in use
        return place
    contents = contents_of(file)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part = Path(mkdtemp(prefix=".part-", dir=place.parent))
        try:
            for name, data in contents.items():
                (part / name).write_bytes(data)
            for number, target in enumerate(targets, 1):
                name = GGUF if len(targets) == 1 else name_of_part(Path(GGUF).stem, number, len(targets))
                (part / name).symlink_to(target)
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
    header = read_model_header(file)
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


def _name(file: Path, states: list[tuple[int, int]]) -> str:
    """The name of a file's directory. It changes with the sizes and times of its parts, with a tokenizer beside it, and
    with weft."""
    state: list[object] = [states, __version__]
    for name in TOKENIZER:
        with suppress(OSError):
            found = (file.parent / name).stat()
            state += [name, found.st_size, found.st_mtime_ns]
    path, rest = (hashlib.sha256(text.encode()).hexdigest()[:12] for text in (os.fsdecode(file), repr(state)))
    named = PART.fullmatch(file.name)
    return f"{(named['model'] if named else file.stem)[:80]}-{path}-{rest}"


def _remove_older(place: Path) -> None:
    """Remove the directories of the file's earlier contents. A running process may read one that was in use lately."""
    start = place.name.rpartition("-")[0]
    for other in place.parent.glob(f"{glob.escape(start)}-*"):
        with suppress(OSError):
            if other != place and time.time() - other.stat().st_mtime > KEPT_S:
                shutil.rmtree(other, ignore_errors=True)
