"""compressed-tensors, the format of llm-compressor: groups of modules, each quantised by a scheme.

A module's tensors, by the scheme of its group:

- "float-quantized": `weight` F8_E4M3 [out, in] and `weight_scale`, as in `fp8`.
- "int-quantized": `weight` int8 [out, in] and `weight_scale`, one for the matrix, for each output or for each group of
  inputs. A number is code * factor.
- "pack-quantized": `weight_packed` int32 [out, in / 8], `weight_scale` [out, groups], `weight_shape` (out and in), and
  as far as they are needed `weight_zero_point` int32 [out / 8, groups] and `weight_g_idx` [in], the group of each
  input. The codes of a word are in order, from the lowest bits on; with 8 bits a word has 4. A number is factor * (code
  - zero). Without zeros, the zero is half of the number of codes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from weft.models.fields import Fields
from weft.models.quantized.blocks import (
    INT4_FORMATS,
    INT8_FORMATS,
    OUTPUTS_AT_ONCE,
    Int4Rows,
    bytes_rows,
    format_of,
    num_blocks,
    spread,
    unpacked,
    unpacked_inputs,
    write_int4,
)
from weft.models.quantized.fp8 import E4M3, Fp8, parse_area
from weft.models.quantized.method import (
    CHANNEL,
    TENSOR,
    WEIGHT,
    Area,
    Blocks,
    Floats,
    Method,
    Parts,
    refuse,
    take_scales,
)
from weft.models.quantized.options import ADVICE, group_size, must_be
from weft.models.quantized.order import are_in_order, are_ordered, order_by_group, ordered_numbers, reordered
from weft.ops.formats import Format

PACKED, SCALE, ZEROS, GROUPS, SHAPE = "_packed", "_scale", "_zero_point", "_g_idx", "_shape"
"""Ends of names, after that of the matrix."""
LINEAR, EMBEDDING = "Linear", "Embedding"
"""Targets that are classes of modules; names of other such classes end with them."""
PATTERN = "re:"
"""The beginning of a target that is a regular expression."""
FORMATS = (
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "pack-quantized",
    "mixed-precision",
    "dense",
)


@dataclass(frozen=True)
class Scheme:
    """How a group's matrices are quantised: `kind` "float" or "int" of `bits`, with a factor for each `area`.
    `has_zeros`: groups have zeros of their own."""

    kind: str
    bits: int
    area: Area
    has_zeros: bool


@dataclass(frozen=True)
class CompressedTensors(Method):
    """`groups` are names of modules, with their schemes."""

    title: ClassVar[str] = "compressed-tensors"
    packed: ClassVar[str] = WEIGHT + PACKED
    helpers: ClassVar[tuple[str, ...]] = tuple(WEIGHT + end for end in (SCALE, ZEROS, GROUPS, SHAPE))

    groups: tuple[tuple[tuple[str, ...], Scheme], ...]

    @classmethod
    def parse(cls, settings: Fields) -> CompressedTensors:
        """Parse the options in config.json."""
        must_be(settings, "format", "mixed-precision", FORMATS)
        for key, is_none in (("sparsity_config", _is_dense), ("transform_config", _has_no_groups)):
            value = settings.data.get(key)
            if value and not is_none(value):
                raise settings.error(key, f"is {repr(value)[:60]}; weft reads models without it; {ADVICE}")
        groups = settings.data.get("config_groups")
        if not isinstance(groups, dict) or not all(isinstance(each, dict) for each in groups.values()):
            raise settings.error("config_groups", f"is {repr(groups)[:60]}; it must be an object of objects")
        found = []
        for name, group in groups.items():
            if group.get("weights") is None:  # only activations are quantised
                continue
            targets = group.get("targets")
            if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
                raise settings.error("config_groups", f"has in {name!r} the targets {repr(targets)[:60]}")
            for target in targets:
                _check_target(target, settings)
            found.append((tuple(targets), _scheme(group, f"{settings.where}: config_groups: {name}")))
        return cls(tuple(found))

    def holds(self, parts: Parts, name: str) -> bool:
        return name + PACKED in parts or parts.dtype_of(name) in (E4M3, "I8")

    def is_ordered(self, parts: Parts, name: str) -> bool:
        return are_ordered(
            parts, name + GROUPS, self._scheme_of(parts, name.removesuffix(WEIGHT)).area.columns
        )

    def take(self, parts: Parts, name: str, num_outputs: int, num_inputs: int) -> Blocks | Floats:
        scheme, is_packed = self._scheme_of(parts, name.removesuffix(WEIGHT)), name + PACKED in parts
        sizes = num_outputs, num_inputs
        if is_packed and scheme.kind == "int":
            return _take_packed(parts, name, sizes, scheme)
        if not is_packed and scheme.kind == "float":
            return Fp8((scheme.area,)).take(parts, name, *sizes)
        if is_packed or scheme.bits != 8 or scheme.has_zeros:
            raise refuse(
                parts, name, f"is stored otherwise than config.json says ({scheme.kind}, {scheme.bits} bits)"
            )
        format = format_of(INT8_FORMATS, num_inputs, scheme.area.columns or num_inputs)
        if format is None:
            raise refuse(parts, name, f"has rows of {num_inputs} integers; weft reads multiples of 32")
        codes = parts.take_part(name, ("I8",), *sizes)
        scales = take_scales(parts, name + SCALE, sizes, scheme.area)
        return Blocks(sizes, format, partial(_int8, format, codes, scales, scheme.area), scales.dtype)

    def count(self, name: str, shape: Sequence[int]) -> int:
        total, scheme = super().count(name, shape), self._find(name.removesuffix(self.packed))
        return total * 32 // scheme.bits if name.endswith(self.packed) and scheme is not None else total

    def _scheme_of(self, parts: Parts, module: str) -> Scheme:
        scheme = self._find(module)
        if scheme is None:
            raise refuse(parts, module, "is quantised, and no group of config.json names it")
        return scheme

    def _find(self, module: str) -> Scheme | None:
        """The scheme of a module: that of the first group which names it, else of the first which names its class."""
        for targets, scheme in self.groups:
            for target in targets:
                is_pattern = target.startswith(PATTERN)
                if target == module or (is_pattern and re.match(target.removeprefix(PATTERN), module)):
                    return scheme
        kind = EMBEDDING if module.endswith("embed_tokens") else LINEAR
        return next(
            (
                scheme
                for targets, scheme in self.groups
                if any(_is_class(target) and target.endswith(kind) for target in targets)
            ),
            None,
        )


def _is_dense(sparsity: object) -> bool:
    return isinstance(sparsity, dict) and sparsity.get("format") in (None, "dense")


def _has_no_groups(transform: object) -> bool:
    return isinstance(transform, dict) and not transform.get("config_groups")


def _check_target(target: str, settings: Fields) -> None:
    """Raise `ModelError` for a class of modules that weft does not read, and for a pattern that is none."""
    if _is_class(target) and not target.endswith((LINEAR, EMBEDDING)):
        raise settings.error(
            "config_groups", f"has the target {target[:60]!r}; weft reads the classes {LINEAR!r} and {EMBEDDING!r}, "
            f"names of modules and patterns; {ADVICE}",
        )  # fmt: skip
    try:
        re.compile(target.removeprefix(PATTERN))
    except re.error as error:
        raise settings.error("config_groups", f"has the pattern {target[:60]!r}: {error}") from error


def _is_class(target: str) -> bool:
    """Whether a group's target is a class of modules, such as Linear."""
    return target.isidentifier() and target[0].isupper()


def _scheme(group: Mapping[str, Any], where: str) -> Scheme:
    """Parse how a group's matrices are quantised. Raises `ModelError`."""
    must_be(Fields(group, where), "format", "dense", FORMATS)
    weights = Fields(group["weights"] if isinstance(group["weights"], dict) else {}, f"{where}: weights")
    kind = must_be(weights, "type", "int", ("int", "float"))
    bits = must_be(weights, "num_bits", 8, (8,) if kind == "float" else (4, 8))
    size = weights.data.get("group_size")
    default = "tensor" if size is None else "channel" if size == -1 else "group"
    strategies = ("tensor", "channel", "group", *(["block"] if kind == "float" else []))
    strategy = must_be(weights, "strategy", default, strategies)
    if strategy == "block":
        sizes = weights.data.get("block_structure")
        if isinstance(sizes, str):
            sizes = [int(part) for part in sizes.split("x") if part.isdecimal()]
        area = parse_area(weights, "block_structure", sizes)
    elif strategy == "group":
        area = Area(1, group_size(weights, None))
        if kind == "float":
            area = parse_area(weights, "group_size", [1, area.columns])
    else:
        area = TENSOR if strategy == "tensor" else CHANNEL
    has_zeros = not weights.flag("symmetric", True)
    if has_zeros and (bits, strategy) not in ((4, "group"), (4, "channel")):
        must_be(weights, "symmetric", True, (True,))
    return Scheme(kind, bits, area, has_zeros)


def _take_packed(parts: Parts, name: str, sizes: tuple[int, int], scheme: Scheme) -> Blocks | Floats:
    """A matrix of words, each of 8 or 4 codes."""
    (num_outputs, num_inputs), per_word = sizes, 32 // scheme.bits
    format = format_of(
        INT4_FORMATS if scheme.bits == 4 else INT8_FORMATS, num_inputs, scheme.area.columns or num_inputs
    )
    if format is None:
        raise refuse(parts, name + PACKED, f"has rows of {num_inputs} integers; weft reads multiples of 32")
    codes = parts.take_part(name + PACKED, ("I32",), num_outputs, num_inputs // per_word)
    scales = take_scales(parts, name + SCALE, sizes, scheme.area)
    num_groups = scales.shape[1]
    stored = parts.take_small(name + SHAPE, ("I64", "I32"), 2).tolist()
    if stored != [*sizes]:
        raise refuse(parts, name + SHAPE, f"says {stored}; config.json wants {[*sizes]}")
    zeros = None
    if scheme.has_zeros:
        zeros = parts.take_part(name + ZEROS, ("I32",), -(-num_outputs // per_word), num_groups)
    order = None
    if name + GROUPS in parts:
        groups = parts.take_small(name + GROUPS, ("I32", "I64"), num_inputs)
        group = scheme.area.columns or num_inputs
        if not are_in_order(parts, name + GROUPS, groups, num_groups, group):
            order = order_by_group(groups, group)
            if order is None:
                return Floats(sizes, scales.dtype, partial(_floats, scheme, codes, scales, zeros, groups))
    if scheme.bits == 8:
        read = partial(_packed_int8, format, codes, scales, scheme.area, order)
    else:
        read = partial(_int4, format, codes, scales, scheme.area, zeros, order)
    return Blocks(sizes, format, read, scales.dtype, order)


def _zeros_of(bits: int, zeros: Tensor | None, num_outputs: int) -> Tensor:
    """The zeros [out, groups], or [1, 1] if all are the same."""
    if zeros is None:
        return torch.full((1, 1), 1 << (bits - 1), dtype=torch.int32)
    return unpacked(zeros.t(), bits).t()[:num_outputs]


def _int4(
    format: Format, codes: Tensor, scales: Tensor, area: Area, zeros: Tensor | None, order: Tensor | None
) -> Tensor:
    codes = codes if order is None else reordered(codes.t(), 4, order).t().contiguous()
    num_outputs, num_inputs = len(codes), 8 * codes.shape[1]
    count = num_blocks(format, num_inputs)
    all_zeros = _zeros_of(4, zeros, num_outputs)
    rows = Int4Rows(
        format,
        spread(scales.float(), area, num_outputs, num_inputs, format),
        all_zeros.expand(num_outputs, count)
        if zeros is None
        else spread(all_zeros, area, num_outputs, num_inputs, format),
    )
    words = codes.view(num_outputs, count, -1, 4)
    for begin in range(0, num_outputs, OUTPUTS_AT_ONCE):
        place = slice(begin, begin + OUTPUTS_AT_ONCE)
        write_int4(rows.words[place], words[place].unbind(-1))
    return rows.bytes


def _int8(format: Format, codes: Tensor, scales: Tensor, area: Area) -> Tensor:
    num_outputs, num_inputs = codes.shape
    return bytes_rows(format, codes, spread(scales.float(), area, num_outputs, num_inputs, format))


def _packed_int8(format: Format, codes: Tensor, scales: Tensor, area: Area, order: Tensor | None) -> Tensor:
    codes = codes if order is None else reordered(codes.t(), 8, order).t().contiguous()
    return _int8(format, codes.view(torch.uint8) ^ 0x80, scales, area)  # code - 128 as a signed byte


def _floats(
    scheme: Scheme, codes: Tensor, scales: Tensor, zeros: Tensor | None, groups: Tensor, dtype: torch.dtype
) -> Tensor:
    """The numbers of a matrix whose groups no blocks fit."""
    shift = _zeros_of(scheme.bits, zeros, len(codes)).expand(scales.shape)
    return ordered_numbers(
        lambda place: unpacked_inputs(codes[place].t(), scheme.bits), shift.t(), scales.t(), groups, dtype
    )
