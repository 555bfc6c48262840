"""Quantised checkpoints of random bits, and the plain meaning of these: each number by itself, from the description of
its format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Plain = dict[str, Any]
"""The tensors of a module as lists; those of FP8 have codes."""
INT32 = 2**31


@dataclass(frozen=True)
class Case:
    """A way to quantise. `settings` are the `quantization_config`. `write` makes the tensors of a module with a number
    of outputs and inputs, and `number` reads one number of them."""

    settings: dict[str, Any]
    write: Callable[[str, int, int], Tensors]
    number: Callable[[Plain, str, int, int], Any]

    def numbers(self, tensors: Tensors, module: str, num_outputs: int, num_inputs: int) -> Tensor:
        """All numbers, float32 [out, in]."""
        plain = {name: _listed(tensor) for name, tensor in tensors.items()}
        rows = [
            [self.number(plain, module, output, item) for item in range(num_inputs)]
            for output in range(num_outputs)
        ]
        return torch.from_numpy(np.array(rows, np.float32))


def _listed(tensor: Tensor) -> Any:
    return (tensor.view(torch.uint8) if tensor.dtype is torch.float8_e4m3fn else tensor).tolist()


def words(*shape: int) -> Tensor:
    return torch.randint(-INT32, INT32, shape, dtype=torch.int64).to(torch.int32)


def factors(*shape: int, dtype: torch.dtype = torch.float16, largest: float = 8.0) -> Tensor:
    """Positive factors, for numbers up to about 0.1 if codes have numbers up to `largest`."""
    return ((0.016 + 0.16 * torch.rand(shape)) / largest).to(dtype)


def bits(word: int, first: int, count: int) -> int:
    """Some bits of a word, from number `first` on."""
    return (word >> first) & ((1 << count) - 1)


f32 = np.float32


def awq(group: int, version: str = "gemm", zeros: str = "any") -> Case:
    """`zeros`: "any", "same" with zeros of 8, or "none" without a tensor of zeros, which then are 8."""

    def write(module: str, outputs: int, inputs: int) -> Tensors:
        groups = 1 if group == -1 else inputs // group
        tensors = {
            f"{module}.qweight": words(inputs, outputs // 8),
            f"{module}.scales": factors(groups, outputs),
        }
        if zeros != "none":
            stored = words(groups, outputs // 8)
            tensors[f"{module}.qzeros"] = (
                stored if zeros == "any" else torch.full_like(stored, 0x88888888 - (1 << 32))
            )
        return tensors

    def number(tensors: Plain, module: str, output: int, item: int) -> Any:
        place = {0: 0, 2: 1, 4: 2, 6: 3, 1: 4, 3: 5, 5: 6, 7: 7}[output % 8]
        at = 0 if group == -1 else item // group
        code = bits(tensors[f"{module}.qweight"][item][output // 8], 4 * place, 4)
        zero = 8 if zeros != "any" else bits(tensors[f"{module}.qzeros"][at][output // 8], 4 * place, 4)
        return f32(tensors[f"{module}.scales"][at][output]) * f32(code - zero)

    settings = {"quant_method": "awq", "bits": 4, "group_size": group, "version": version}
    return Case({**settings, "zero_point": zeros == "any", "modules_to_not_convert": None}, write, number)


def auto_round(case: Case, packing: str, symmetric: bool) -> Case:
    """The tensors of a case in AutoRound's name."""
    settings = {key: case.settings[key] for key in ("bits", "group_size")}
    settings |= {"quant_method": "auto-round", "sym": symmetric, "data_type": "int"}
    settings["extra_config"] = {"lm_head": {"bits": 16}}
    return Case({**settings, "packing_format": f"auto_round:{packing}"}, case.write, case.number)


def gptq(group: int, width: int = 4, version: str = "gptq", order: str = "none") -> Case:
    """`order`: "none" without `g_idx`, "plain" with groups of adjacent inputs, "mixed" with random groups."""
    each = 32 // width

    def write(module: str, outputs: int, inputs: int) -> Tensors:
        groups = 1 if group == -1 else -(-inputs // group)
        zeros = words(groups, outputs // each)
        if width == 8:
            stored = 127 if version == "gptq" else 128
            zeros = torch.full_like(zeros, stored * 0x01010101 - (0 if stored == 127 else 1 << 32))
        tensors = {
            f"{module}.qweight": words(inputs // each, outputs),
            f"{module}.qzeros": zeros,
            f"{module}.scales": factors(groups, outputs, largest=2.0 ** (width - 1)),
        }
        if order != "none":
            indices = torch.arange(inputs) // (inputs if group == -1 else group)
            if order == "mixed":
                indices = indices[torch.randperm(inputs)]
            tensors[f"{module}.g_idx"] = indices.int()
        return tensors

    def number(tensors: Plain, module: str, output: int, item: int) -> Any:
        at = 0 if group == -1 else item // group
        if order != "none":
            at = tensors[f"{module}.g_idx"][item]
        code = bits(tensors[f"{module}.qweight"][item // each][output], width * (item % each), width)
        zero = bits(tensors[f"{module}.qzeros"][at][output // each], width * (output % each), width)
        zero += version == "gptq"
        return f32(tensors[f"{module}.scales"][at][output]) * f32(code - zero)

    settings: dict[str, Any] = {"quant_method": "gptq", "bits": width, "group_size": group, "sym": width == 8}
    return Case({**settings, "desc_act": order == "mixed", "checkpoint_format": version}, write, number)


def e4m3(*shape: int) -> Tensor:
    """All codes but the two of NaN."""
    codes = torch.randint(0, 254, shape, dtype=torch.int64)
    return (codes + (codes >= 127)).to(torch.uint8).view(torch.float8_e4m3fn)


def of_e4m3(code: int) -> float:
    """The number of a code: a sign, four bits of an exponent, three of a fraction."""
    exponent, fraction = code >> 3 & 15, code & 7
    size = fraction / 8 * 2**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)
    return -size if code & 128 else size


def fp8(
    settings: dict[str, Any],
    area: tuple[int, int],
    dims: int = 2,
    scale: str = "weight_scale",
    dtype: torch.dtype = torch.float32,
    is_spread: bool = False,
) -> Case:
    """`area` are the outputs and the inputs with one factor, 0 for all. `dims` are those of the factors. With
    `is_spread` each has another dimension of 1 behind it."""

    def write(module: str, outputs: int, inputs: int) -> Tensors:
        sizes = [-(-size // each) if each else 1 for size, each in zip((outputs, inputs), area, strict=True)]
        made = factors(*sizes, dtype=torch.float32, largest=448)
        made = (
            made.view(sizes[:dims])
            if dtype != torch.float8_e8m0fnu
            else 2.0 ** made.mul(10000).floor().sub(13)
        )
        if is_spread:
            made = made[:, None, :, None]
        return {
            f"{module}.weight": e4m3(outputs, inputs),
            f"{module}.{scale}": made.to(dtype),
            f"{module}.input_scale": torch.ones(()),
        }

    def number(tensors: Plain, module: str, output: int, item: int) -> Any:
        factor = tensors[f"{module}.{scale}"]
        for at, each in list(zip((output, item), area, strict=True))[:dims]:
            factor = factor[at // each if each else 0]
            factor = factor[0] if is_spread else factor
        return f32(of_e4m3(tensors[f"{module}.weight"][output][item])) * f32(factor)

    return Case(settings, write, number)


def compressed(format: str, weights: dict[str, Any], targets: list[str] | None = None) -> dict[str, Any]:
    """The settings of compressed-tensors for one group."""
    group = {"targets": targets or ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }


def int8(strategy: str, group: int = 0) -> Case:
    def write(module: str, outputs: int, inputs: int) -> Tensors:
        rows, columns = 1 if strategy == "tensor" else outputs, inputs // group if group else 1
        made = factors(rows, columns, dtype=torch.bfloat16, largest=128)
        return {
            f"{module}.weight": torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8),
            f"{module}.weight_scale": made[0] if strategy == "tensor" else made,
        }

    def number(tensors: Plain, module: str, output: int, item: int) -> Any:
        made = tensors[f"{module}.weight_scale"]
        factor = made[0] if strategy == "tensor" else made[output][item // group if group else 0]
        return f32(factor) * f32(tensors[f"{module}.weight"][output][item])

    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": strategy}
    weights |= {"group_size": group} if group else {}
    return Case(compressed("int-quantized", weights), write, number)


def packed(group: int, width: int = 4, symmetric: bool = True, order: str = "none") -> Case:
    """`group` 0: one factor for an output. `order`: as in `gptq`, and "unset" for groups of -1."""
    each = 32 // width

    def write(module: str, outputs: int, inputs: int) -> Tensors:
        groups = inputs // group if group else 1
        tensors = {
            f"{module}.weight_packed": words(outputs, inputs // each),
            f"{module}.weight_scale": factors(
                outputs, groups, dtype=torch.bfloat16, largest=2.0 ** (width - 1)
            ),
            f"{module}.weight_shape": torch.tensor([outputs, inputs]),
        }
        if not symmetric:
            tensors[f"{module}.weight_zero_point"] = words(-(-outputs // each), groups)
        if order != "none":
            indices = torch.arange(inputs) // group
            indices = indices[torch.randperm(inputs)] if order == "mixed" else indices
            tensors[f"{module}.weight_g_idx"] = (
                indices if order != "unset" else torch.full_like(indices, -1)
            ).int()
        return tensors

    def number(tensors: Plain, module: str, output: int, item: int) -> Any:
        at = item // group if group else 0
        if order == "mixed":
            at = tensors[f"{module}.weight_g_idx"][item]
        code = bits(tensors[f"{module}.weight_packed"][output][item // each], width * (item % each), width)
        zero = 1 << (width - 1)
        if not symmetric:
            zero = bits(
                tensors[f"{module}.weight_zero_point"][output // each][at], width * (output % each), width
            )
        return f32(tensors[f"{module}.weight_scale"][output][at]) * f32(code - zero)

    weights: dict[str, Any] = {"num_bits": width, "type": "int", "symmetric": symmetric}
    weights |= {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    weights["actorder"] = "group" if order == "mixed" else None
    return Case(compressed("pack-quantized", weights), write, number)


def _fp8_of_compressed(**weights: Any) -> dict[str, Any]:
    return compressed("float-quantized", {"num_bits": 8, "type": "float", "symmetric": True, **weights})


DEEPSEEKS = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
STATIC = {"quant_method": "fp8", "activation_scheme": "static"}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}

CASES: dict[str, Case] = {
    "awq-128": awq(128),
    "awq-64": awq(64, "GEMM"),
    "awq-32": awq(32),
    "awq-all": awq(-1),
    "awq-symmetric": awq(128, zeros="same"),
    "awq-without-zeros": awq(64, zeros="none"),
    "gptq-128": gptq(128),
    "gptq-64-plain": gptq(64, order="plain"),
    "gptq-32-v2": gptq(32, version="gptq_v2", order="plain"),
    "gptq-all": gptq(-1, order="plain"),
    "gptq-mixed": gptq(64, order="mixed"),
    "gptq-8": gptq(128, 8),
    "gptq-8-v2": gptq(32, 8, "gptq_v2", "plain"),
    "gptq-8-mixed": gptq(32, 8, order="mixed"),
    "fp8-blocks": fp8(DEEPSEEKS, (128, 128), scale="weight_scale_inv"),
    "fp8-blocks-bf16": fp8(DEEPSEEKS, (128, 128), scale="weight_scale_inv", dtype=torch.bfloat16),
    "fp8-blocks-e8m0": fp8(DEEPSEEKS, (128, 128), scale="weight_scale_inv", dtype=torch.float8_e8m0fnu),
    "fp8-tensor": fp8(STATIC, (0, 0), 0),
    "fp8-channel": fp8({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, (1, 0)),
    "fp8-modelopt": fp8(MODELOPT, (0, 0), 0),
    "fp8-modelopt-channel": fp8({**MODELOPT, "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, (1, 0), 1),
    "fp8-modelopt-blocks": fp8({**MODELOPT, "quant_algo": "FP8_PB_WO"}, (128, 128), is_spread=True),
    "fp8-compressed-tensor": fp8(_fp8_of_compressed(strategy="tensor"), (0, 0), 1, dtype=torch.bfloat16),
    "fp8-compressed-channel": fp8(_fp8_of_compressed(strategy="channel"), (1, 0), dtype=torch.bfloat16),
    "fp8-compressed-group": fp8(_fp8_of_compressed(strategy="group", group_size=128), (1, 128)),
    "fp8-compressed-block": fp8(
        _fp8_of_compressed(strategy="block", block_structure=[64, 128]), (64, 128), dtype=torch.bfloat16
    ),
    "int8-channel": int8("channel"),
    "int8-tensor": int8("tensor"),
    "int8-group": int8("group", 32),
    "packed-128": packed(128),
    "packed-32-zeros": packed(32, symmetric=False),
    "packed-channel": packed(0),
    "packed-channel-zeros": packed(0, symmetric=False),
    "packed-plain": packed(64, order="plain"),
    "packed-unset": packed(64, order="unset"),
    "packed-mixed": packed(32, symmetric=False, order="mixed"),
    "packed-8": packed(128, 8),
    "auto-round-gptq": auto_round(gptq(128), "auto_gptq", False),
    "auto-round-awq": auto_round(awq(128), "auto_awq", False),
    "auto-round-awq-symmetric": auto_round(awq(32, zeros="same"), "auto_awq", True),
}
"""Ways that weft reads, by names."""


def quantise(
    case: Case, dense: Tensors, modules: Callable[[str], bool]
) -> Iterator[tuple[str, Tensors, Tensor]]:
    """For each matrix of a checkpoint in a module that `modules` chooses: its name, the tensors in its place, and their
    numbers."""
    for name, tensor in dense.items():
        module = name.removesuffix(".weight")
        if tensor.dim() == 2 and modules(module):
            tensors = case.write(module, *tensor.shape)
            yield name, tensors, case.numbers(tensors, module, *tensor.shape)
