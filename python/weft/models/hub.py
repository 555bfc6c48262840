"""Downloads models of the Hugging Face hub, into the cache that huggingface_hub and transformers use too.

The config is downloaded and checked before the weights, so that a model that weft can't run costs no gigabytes.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage
from typing import Any

from weft.config import WEIGHTS, WEIGHTS_INDEX, hub_directory, weight_files
from weft.core.files import MAX_JSON_BYTES, read_json
from weft.errors import ModelError, escaped
from weft.models.architectures import parse_config
from weft.models.gguf.parts import PART
from weft.models.quantized.parse import APART

Say = Callable[[str], object]
TIMEOUT_S = 10.0
CONFIG = "config.json"
SMALL_FILES = (
    APART,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tiktoken.model",
    "tekken.json",
    "spiece.model",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    WEIGHTS_INDEX,
)
"""The files of a model besides its config and weights, as far as a repository has them."""
OTHER_FILES = re.compile(r"additional_chat_templates/[^/]+\.jinja|[^/]+\.tiktoken|[^/]+\.model\.v\d\w*")


def get_from_hub(name: str, say: Say) -> Path:
    """Download a model of the hub (ORG/NAME) unless it is in the cache. Returns its directory. `say` receives progress
    messages; a bar for each large file goes to stderr.

    Raises `ModelError` if the hub can't be reached or refuses, for a model that weft can't run (before its weights are
    downloaded), and if the disk has no room. A second call continues with the files that are missing.
    """
    directory = hub_directory(name)
    if directory is not None:
        say(f"{name} is in {directory}")
        return directory
    sizes = _files(name)
    if CONFIG not in sizes:
        raise ModelError(f"{name}: the repository has no {CONFIG}{_advice(name, sizes)}")
    small = [file for file in sizes if file in SMALL_FILES or OTHER_FILES.fullmatch(file)]
    for file in (CONFIG, *small):
        if sizes[file] > MAX_JSON_BYTES:
            raise ModelError(
                f"{name}: {file} has {_size(sizes[file])}; weft reads {_size(MAX_JSON_BYTES)} at most"
            )
    config = _download(name, CONFIG)
    parse_config(read_json(config), f"{name}: {CONFIG}")
    if WEIGHTS not in sizes and WEIGHTS_INDEX not in sizes:
        raise ModelError(f"{name}: the repository has no {WEIGHTS}{_advice(name, sizes)}")
    directory, commit = config.parent, config.parent.name  # the other files are those of the same commit
    for file in small:
        _download(name, file, commit)
    missing = [file for file in weight_files(directory) if not (directory / file).is_file()]
    for file in missing:
        if file not in sizes:
            raise ModelError(f"{name}: {WEIGHTS_INDEX} names {file!r}, which the repository does not have")
    num_bytes = sum(sizes[file] for file in missing)
    _check_room(name, directory, num_bytes)
    say(f"downloading {name} ({_size(num_bytes)}) to {directory}")
    for file in missing:
        _download(name, file, commit, has_bar=True)
    return directory


def _advice(name: str, files: Iterable[str]) -> str:
    """The end of the message for a repository without a checkpoint."""
    packed = next((file for file in files if file.endswith(".gguf")), None)
    if packed is None:
        return ", and so no model that weft can load"
    part = PART.fullmatch(packed)
    what = packed if part is None else f"--include '{part['model']}-*-of-{part['count']}.gguf'"
    place = (
        "the path that this prints"
        if part is None
        else "the path of a part in the directory that this prints"
    )
    return f"; to use a GGUF file of it, run: hf download {name} {what}, and give weft {place}"


def _files(name: str) -> dict[str, int]:
    """The names of the files of a repository, with their sizes in bytes."""
    from huggingface_hub import HfApi

    with _explained(name):
        info = HfApi().model_info(name, files_metadata=True, timeout=TIMEOUT_S)
    return {file.rfilename: file.size or 0 for file in info.siblings or ()}


def _download(name: str, file: str, commit: str | None = None, has_bar: bool = False) -> Path:
    """Download a file of a commit, by default the newest, into the cache. Returns its path."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            hidden = {} if has_bar else {"disable": True}
            super().__init__(*arguments, **{**options, "desc": escaped(file), **hidden})  # type: ignore[no-untyped-call]

    with _explained(name):
        return Path(hf_hub_download(name, file, revision=commit, tqdm_class=Bar))


def _check_room(name: str, directory: Path, num_bytes: int) -> None:
    free = disk_usage(directory).free
    if num_bytes > free:
        raise ModelError(
            f"{name}: its weights have {_size(num_bytes)}, and {directory} has room for {_size(free)}; make room, or "
            "set HF_HOME to a directory of another disk"
        )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn the errors of huggingface_hub, which have no common base class, into a `ModelError`."""
    try:
        yield
    except Exception as error:
        raise ModelError(f"{name}: {_reason(name, error)}") from error


def _reason(name: str, error: Exception) -> str:
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    token = "run `hf auth login`, or set HF_TOKEN"
    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # the reason why the hub was not asked
    lines = str(error).strip().splitlines() or [""]
    match error:
        case errors.GatedRepoError():
            return f"its owner asks for consent: give it at {hub}/{name}, and then {token}"
        case errors.RepositoryNotFoundError():
            return f"{hub} has no such model, or it is private; for a private one {token}"
        case errors.HFValidationError():
            return str(error)
        case errors.OfflineModeIsEnabled():
            return "it is not in the cache, and HF_HUB_OFFLINE forbids to download it"
        case errors.HfHubHTTPError() if error.response.status_code == 401:
            return f"{hub} refuses the token; {token}, or log out with `hf auth logout`"
        case errors.HfHubHTTPError() if error.response.status_code in (429, 500, 502, 503, 504):
            return f"{hub} answers {error.response.status_code}: it is busy; try again later"
        case errors.HfHubHTTPError():
            return f"{hub} answers {error.response.status_code}: {lines[0]}"
        case OSError() if error.errno == errno.ENOSPC:
            return "the disk is full; make room, or set HF_HOME to a directory of another disk"
    return f"{hub} can't be reached ({type(error).__name__}: {lines[0]}); try again, or set HF_ENDPOINT to a mirror"
