"""Default sampling parameters from a checkpoint's generation_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from weft.core import SamplingParams
from weft.core.files import read_json
from weft.errors import InputError, ModelError

Source = Literal["auto", "weft"]
FIELDS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""Maps keys of the file to fields of `SamplingParams`."""


def sampling_defaults(directory: Path, source: Source | str = "auto") -> dict[str, Any]:
    """Read the fields of `SamplingParams` that a directory's generation_config.json sets. Empty with the source "weft",
    or without such a file. Raises `ModelError` for a file that can't be read and for values that `SamplingParams`
    refuses, and `InputError` for another source.

    As in transformers, `do_sample: false` means greedy whatever the temperature, and `do_sample: true` without a
    temperature samples at 1.
    """
    if source not in ("auto", "weft"):
        raise InputError(f'generation_config is {source!r}; it must be "auto" (the model\'s file) or "weft"')
    path = directory / "generation_config.json"
    if source == "weft" or not path.is_file():
        return {}
    data = read_json(path)
    found = {field: data[key] for key, field in FIELDS.items() if data.get(key) is not None}
    if data.get("do_sample") is False:
        found["temperature"] = 0.0
    elif data.get("do_sample") is True:
        found.setdefault("temperature", 1.0)
    try:
        SamplingParams(**found)
    except InputError as error:
        raise ModelError(f'{path}: {error}; mend the file, or give generation_config="weft"') from None
    return found
