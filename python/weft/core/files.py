"""Files shared with other programs: reads with a size limit, and atomic writes."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from weft.errors import ModelError

MAX_JSON_BYTES = 256 << 20
"""The largest JSON file that is read, in bytes. The index of a model with thousands of shards has a few MiB."""

STREAMS = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
"""Folders of open files. Files there are appended to and not replaced: /dev/stdout may lead to a regular file."""


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file of a model directory. Raises `ModelError` if there is none."""
    if not path.exists():
        packed = next(path.parent.glob("*.gguf"), None)
        hint = "a model directory has config.json and safetensors"
        if packed is not None:
            hint += f"; or give the path of the GGUF file, {packed}"
        raise ModelError(f"{path}: there is no such file; {hint}")
    try:
        if not path.is_file() or path.stat().st_size > MAX_JSON_BYTES:
            raise ModelError(f"{path}: is no file, or longer than {MAX_JSON_BYTES >> 20} MiB")
        data = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ModelError(f"{path}: can't be read as JSON: its brackets nest too deep") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path}: can't be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path}: holds a JSON {type(data).__name__}; it must hold an object")
    return data


def inside(directory: Path, name: object, where: Path) -> Path:
    """The path of a file in a directory, from a `name` found in the file `where`. Raises `ModelError` for a name
    that is no relative path inside the directory.
    """
    # Symbolic links may lead outside: caches of checkpoints consist of them.
    relative = PurePosixPath(name) if isinstance(name, str) and "\0" not in name else None
    if relative is None or relative.is_absolute() or ".." in relative.parts or not relative.parts:
        raise ModelError(f"{where}: names the file {name!r}; give one inside the directory")
    return directory / relative


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically. On failure, raises `OSError` and leaves the old file unchanged. A pipe, a device or an
    open file (`STREAMS`) is appended to instead."""
    if path.parent in STREAMS or (path.exists() and not path.is_file()):
        with path.open("ab") as stream:
            stream.write(data)
        return
    path = Path(os.path.realpath(path))
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
