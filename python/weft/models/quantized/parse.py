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
from weft.models.quantized.method import CHANNEL, Area, Method
from weft.models.quantized.mxfp4 import Mxfp4
from weft.models.quantized.options import ADVICE, must_be

KEY = "quantization_config"
APART = "hf_quant_config.json"
"""The file where older checkpoints of modelopt have what `KEY` has."""
MXFP4 = "mxfp4"


_MODELOPT = {
    "FP8": Fp8(),
    "FP8_PER_CHANNEL_PER_TOKEN": Fp8((CHANNEL,)),
    "FP8_PB_WO": Fp8((Area(128, 128),)),
    "fp8_pb_wo": Fp8((Area(128, 128),)),
}
"""modelopt's methods, by their names."""
_OF_A_MODULE = ("bits", "group_size", "sym", "data_type")
"""AutoRound's options that a module may have for itself."""
_AS_GPTQ, _AS_AWQ = "auto_round:auto_gptq", "auto_round:auto_awq"


def _modelopt(settings: Fields) -> Fp8:
    return _MODELOPT[must_be(settings, "quant_algo", None, tuple(_MODELOPT))]


def _auto_round(settings: Fields) -> Method:
    """AutoRound, whose tensors are those of GPTQ or of AWQ."""
    packing = must_be(settings, "packing_format", None, (_AS_GPTQ, _AS_AWQ))
    must_be(settings, "data_type", "int", ("int",))
    is_symmetric = must_be(settings, "sym", None, (True, False))
    modules = settings.data.get("extra_config") or {}
    if not isinstance(modules, dict) or not all(isinstance(each, dict) for each in modules.values()):
        raise settings.error("extra_config", f"is {repr(modules)[:60]}; it must be an object of objects")
    for name, options in modules.items():
        width = options.get("bits")
        if isinstance(width, int) and width >= 16:  # not quantised, as the tensors say, too
            continue
        if any(options.get(key, settings.data.get(key)) != settings.data.get(key) for key in _OF_A_MODULE):
            raise settings.error(
                "extra_config", f"gives {name[:60]!r} options of its own, which weft does not read; {ADVICE}"
            )
    if packing == _AS_AWQ:
        return Awq.parse(Fields({**settings.data, "zero_point": not is_symmetric}, settings.where))
    return Gptq.parse(settings)


METHODS: Mapping[str, Callable[[Fields], Method]] = {
    "fp8": Fp8.parse,
    "fbgemm_fp8": Fp8.parse,
    "modelopt": _modelopt,
    "awq": Awq.parse,
    "gptq": Gptq.parse,
    "auto-round": _auto_round,
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
