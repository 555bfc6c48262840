"""Parses how a checkpoint is quantised, by `quantization_config` in config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.core.files import read_json
from weft.models.fields import Fields
from weft.models.quantized.awq import Awq
from weft.models.quantized.compressed_tensors import CompressedTensors
from weft.models.quantized.fp8 import Fp8
from weft.models.quantized.gptq import Gptq
from weft.models.quantized.method import Method
from weft.models.quantized.mxfp4 import Mxfp4
from weft.models.quantized.options import ADVICE, must_be

KEY = "quantization_config"
APART = "hf_quant_config.json"
"""The file where older checkpoints of modelopt have what `KEY` has."""
MXFP4 = "mxfp4"


def _modelopt(settings: Fields) -> Fp8:
    must_be(settings, "quant_algo", None, ("FP8",))
    return Fp8()


METHODS: Mapping[str, Callable[[Fields], Method]] = {
    "fp8": Fp8.parse,
    "fbgemm_fp8": Fp8.parse,
    "modelopt": _modelopt,
    "awq": Awq.parse,
    "gptq": Gptq.parse,
    "compressed-tensors": CompressedTensors.parse,
    MXFP4: Mxfp4.parse,
}
"""The methods that weft reads, by their names in config.json."""

TITLES = {
    "bitsandbytes": "bitsandbytes",
    "hqq": "HQQ",
    "exl2": "ExLlamaV2",
    "exl3": "ExLlamaV3",
    "aqlm": "AQLM",
}
"""Names of other methods."""

GENERAL = tuple(name for name in METHODS if name != MXFP4)
"""The methods that weft reads for each architecture of its own."""


def read_model_config(directory: Path) -> dict[str, Any]:
    """The contents of a directory's config.json, with how modelopt quantised the model. Raises `ModelError`."""
    data = read_json(directory / "config.json")
    if data.get(KEY) is None and (directory / APART).is_file():
        settings = read_json(directory / APART).get("quantization")
        data[KEY] = {**settings, "quant_method": "modelopt"} if isinstance(settings, dict) else settings
    return data


def parse_quantization(fields: Fields, methods: Sequence[str] = GENERAL) -> Method | None:
    """The method of a quantised checkpoint, None for others. `methods` are those that the architecture reads. Raises
    `ModelError` for others, and for options that weft does not read."""
    settings = fields.data.get(KEY)
    if settings is None:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if not isinstance(method, str) or not method:
        raise fields.error(KEY, f"does not name a method in 'quant_method'; {ADVICE}")
    if method not in METHODS:
        raise fields.error(KEY, f"says that it is quantised with {TITLES.get(method, method)}; {ADVICE}")
    if method not in methods:
        raise fields.error(
            KEY, f"says that it is quantised with {method!r}, which weft does not read for this architecture; use the "
            "original model, in bfloat16",
        )  # fmt: skip
    return METHODS[method](Fields(settings, f"{fields.where}: {KEY}"))


def refuse_quantized(fields: Fields) -> None:
    """Raise `ModelError` for the config of a quantised checkpoint."""
    parse_quantization(fields, ())
