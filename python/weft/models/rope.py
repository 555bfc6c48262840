"""Rotary embedding: its frequencies and tables, and its parameters in config.json.

The frequencies are those of transformers. Some scalings of transformers depend on the length of the text, so that a
text's tokens would depend on its neighbours in a batch. Here they depend on the longest text that the model will read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.models.fields import Fields

FULL, SLIDING = "full_attention", "sliding_attention"
"""The kinds of layers, as `layer_types` and `rope_parameters` name them."""

ORIGINAL = "original_max_position_embeddings"
"""The key of the length for which the frequencies are, before they are scaled."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The scaling of rotary embedding that changes nothing, and the base of the others. Cosines and sines are
    multiplied by `attention_factor`."""

    attention_factor: float = 1.0

    def frequencies(self, theta: float, size: int, longest: int, device: torch.device | str) -> Tensor:
        """Radians per position of each pair, float32 [ceil(size / 2)], for `size` rotated elements of a head.
        `longest` is the length of the longest text."""
        return 1.0 / _periods(theta, size, device)

    @property
    def num_positions(self) -> int:
        """The number of positions that the scaling is for, 0 if it does not say."""
        return 0


@dataclass(frozen=True, kw_only=True)
class LinearScaling(Scaling):
    """All frequencies divided by `factor`."""

    factor: float

    def frequencies(self, theta: float, size: int, longest: int, device: torch.device | str) -> Tensor:
        return super().frequencies(theta, size, longest, device) / self.factor


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling(Scaling):
    """Frequencies of fewer than `low` turns in `original` positions are divided by `factor`. Those of more than `high`
    turns stay. The others are between."""

    factor: float
    low: float
    high: float
    original: int

    def frequencies(self, theta: float, size: int, longest: int, device: torch.device | str) -> Tensor:
        plain = super().frequencies(theta, size, longest, device)
        turns = self.original * plain / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return plain * (kept + (1.0 - kept) / self.factor)


@dataclass(frozen=True, kw_only=True)
class DynamicScaling(Scaling):
    """A larger theta for texts longer than `original` (dynamic NTK)."""

    factor: float
    original: int

    def frequencies(self, theta: float, size: int, longest: int, device: torch.device | str) -> Tensor:
        growth = self.factor * max(longest, self.original) / self.original - (self.factor - 1)
        return super().frequencies(theta * growth ** (size / (size - 2)), size, longest, device)


@dataclass(frozen=True, kw_only=True)
class YarnScaling(Scaling):
    """Frequencies of fewer than `slow` turns in `original` positions are divided by `factor`. Those of more than `fast`
    turns stay. The others are between. `truncate`: the bounds are whole pairs."""

    factor: float
    original: int
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True

    def frequencies(self, theta: float, size: int, longest: int, device: torch.device | str) -> Tensor:
        def pair_of(turns: float) -> float:
            return size * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = pair_of(self.fast), pair_of(self.slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        high += 0.001 if low == high else 0.0
        periods = _periods(theta, size, device)
        scaled = (torch.arange(len(periods), dtype=torch.float32, device=device) - low) / (high - low)
        kept = 1 - scaled.clamp(0.0, 1.0)
        return 1.0 / (self.factor * periods) * (1 - kept) + 1.0 / periods * kept

    @property
    def num_positions(self) -> int:
        return int(self.original * self.factor)


@dataclass(frozen=True, kw_only=True)
class LongRopeScaling(Scaling):
    """Each frequency divided by its factor: by that of `long` if texts may be longer than `original`, else by that of
    `short`."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    original: int

    def frequencies(self, theta: float, size: int, longest: int, device: torch.device | str) -> Tensor:
        factors = self.long if longest > self.original else self.short
        return 1.0 / (
            torch.tensor(factors, dtype=torch.float32, device=device) * _periods(theta, size, device)
        )


UNSCALED = Scaling()


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of the first elements of each head, `fraction` of them.

    In pair i the position p is a turn by p times the frequency i, which is a power of `theta` after `scaling`."""

    theta: float = 10000.0
    scaling: Scaling = UNSCALED
    fraction: float = 1.0

    def num_pairs(self, head_dim: int) -> int:
        """The number R of rotated pairs of a head."""
        return (self._size(head_dim) + 1) // 2

    def frequencies(self, head_dim: int, longest: int = 0, device: torch.device | str = "cpu") -> Tensor:
        """Radians per position, float32 [R], for texts of at most `longest` tokens."""
        return self.scaling.frequencies(self.theta, self._size(head_dim), longest, device)

    def table(
        self, head_dim: int, length: int, device: torch.device | str = "cpu", longest: int | None = None
    ) -> Tensor:
        """Cosines and sines of each position times the attention factor, float32 [length, R, 2], for texts of at most
        `longest` tokens (default: `length`). If `longest` is larger than `length`, the table has that length."""
        longest = longest or length
        length = max(length, longest)
        # The result is allocated first: a table that does not fit in memory fails before its parts use memory.
        table = torch.empty(length, self.num_pairs(head_dim), 2, dtype=torch.float32, device=device)
        if table.is_meta:  # torch would import its compiler for the operations below
            return table
        positions = torch.arange(length, dtype=torch.float32, device=device)
        angles = torch.outer(positions, self.frequencies(head_dim, longest, device))
        return torch.stack((angles.cos(), angles.sin()), -1, out=table).mul_(self.scaling.attention_factor)

    def _size(self, head_dim: int) -> int:
        return int(head_dim * self.fraction)


PLAIN_ROPE = Rope()


def yarn_growth(factor: float, weight: float = 1.0) -> float:
    """The growth of YaRN's attention scores for texts longer by `factor`."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def rope_key(fields: Fields) -> str:
    """The key of the parameters, `rope_parameters` or in older files `rope_scaling`. Raises `ModelError` if the file
    has both, and they differ."""
    new, old = fields.data.get("rope_parameters"), fields.data.get("rope_scaling")
    if not new:
        return "rope_scaling"
    if old and isinstance(old, dict) and isinstance(new, dict) and not old.items() <= new.items():
        raise fields.error("rope_scaling", "is there, and so is 'rope_parameters'; keep one of them")
    return "rope_parameters"


def parse_rope(
    fields: Fields,
    head_dim: int,
    max_position: int,
    *,
    layer_type: str | None = None,
    partial: bool = False,
) -> Rope:
    """Parse the rotary embedding from `rope_parameters` (transformers 5), or from `rope_theta` and `rope_scaling`.

    `layer_type` is `FULL` or `SLIDING` if these layers have different rotary embeddings; then `rope_parameters` has an
    object for each. In older files `rope_theta` and `rope_scaling` are for `FULL`, and `rope_local_base_freq` is theta
    for `SLIDING`. `partial`: whether the architecture rotates a part of each head if the config has
    `partial_rotary_factor`; others refuse that.
    """
    key = rope_key(fields)
    data, where = _object(fields, key), f"{fields.where}: {key}"
    is_nested = FULL in data or SLIDING in data
    if is_nested:
        if layer_type is None:
            raise fields.unsupported(key, "has an object for each kind of layers; weft runs one for all here")
        data, where = _object(Fields(data, where), layer_type), f"{where}: {layer_type}"
    elif layer_type is not None and key == "rope_parameters":
        raise fields.unsupported(key, "has no object for each kind of layers")
    elif layer_type == SLIDING:
        data = {}
    scaling = Fields(data, where)
    theta_key = "rope_local_base_freq" if layer_type == SLIDING else "rope_theta"
    theta = scaling.number("rope_theta", fields.number(theta_key, 10000.0))
    fraction = _fraction(fields, scaling, head_dim, partial)
    rotated = int(head_dim * fraction)
    outer = fields if ORIGINAL in fields.data and not is_nested else scaling
    kind = data.get("rope_type") or data.get("type") or "default"
    if kind == "default":
        return Rope(theta, fraction=fraction)
    if not isinstance(kind, str) or kind not in PARSERS:
        raise fields.unsupported(key, f"has rope_type {kind!r}; weft knows {', '.join(map(repr, PARSERS))}")
    if kind in ("dynamic", "yarn") and (theta <= 1 or rotated <= 2):
        raise fields.error(
            key, f"is {kind!r}, which needs a rope_theta above 1 and more than 2 rotated elements"
        )
    original = outer.integer(ORIGINAL, max_position) if kind not in ("linear", "dynamic") else max_position
    return Rope(theta, PARSERS[kind](scaling, max_position, original, rotated), fraction)


def _object(fields: Fields, key: str) -> Mapping[str, Any]:
    data = fields.data.get(key) or {}
    if not isinstance(data, dict):
        raise fields.error(key, f"is {data!r}; it must be an object")
    return data


def _fraction(fields: Fields, scaling: Fields, head_dim: int, partial: bool) -> float:
    """Parse `partial_rotary_factor`."""
    key = "partial_rotary_factor"
    if not partial:
        for source in (fields, scaling):
            source.must_be(key, 1, 1.0)
    source = fields if scaling.data.get(key) is None else scaling
    fraction = source.number(key, 1.0)
    if not 1 <= head_dim * fraction <= head_dim:
        raise source.error(key, f"is {fraction}; it must be a part of the {head_dim} elements of a head")
    return fraction


def _parse_linear(scaling: Fields, max_position: int, original: int, rotated: int) -> Scaling:
    return LinearScaling(factor=scaling.number("factor"))


def _parse_llama3(scaling: Fields, max_position: int, original: int, rotated: int) -> Scaling:
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if low >= high:
        raise scaling.error("low_freq_factor", f"is {low}; it must be less than 'high_freq_factor', {high}")
    return Llama3Scaling(factor=scaling.number("factor"), low=low, high=high, original=original)


def _parse_dynamic(scaling: Fields, max_position: int, original: int, rotated: int) -> Scaling:
    return DynamicScaling(factor=scaling.number("factor"), original=original)


def _parse_yarn(scaling: Fields, max_position: int, original: int, rotated: int) -> Scaling:
    data, factor = scaling.data, scaling.number("factor", max_position / original)
    growth = yarn_growth(factor)
    if data.get("mscale") and data.get("mscale_all_dim"):  # 0 means none
        weights = scaling.number("mscale"), scaling.number("mscale_all_dim")
        growth = yarn_growth(factor, weights[0]) / yarn_growth(factor, weights[1])
    return YarnScaling(
        factor=factor,
        original=original,
        fast=scaling.number("beta_fast", 32.0),
        slow=scaling.number("beta_slow", 1.0),
        truncate=scaling.flag("truncate", True),
        attention_factor=scaling.number("attention_factor", growth),
    )


def _parse_longrope(scaling: Fields, max_position: int, original: int, rotated: int) -> Scaling:
    factor, growth = scaling.number("factor", max_position / original), 1.0
    if factor > 1:
        if original == 1:
            raise scaling.error(ORIGINAL, "is 1; it must be larger")
        growth = math.sqrt(1 + math.log(factor) / math.log(original))
    return LongRopeScaling(
        short=_factors(scaling, "short_factor", (rotated + 1) // 2),
        long=_factors(scaling, "long_factor", (rotated + 1) // 2),
        original=original,
        attention_factor=scaling.number("attention_factor", growth),
    )


def _factors(scaling: Fields, key: str, count: int) -> tuple[float, ...]:
    values = scaling.data.get(key)
    if not isinstance(values, list) or len(values) != count:
        raise scaling.error(key, f"must be a list of {count} numbers, one for each rotated pair")
    return tuple(Fields({key: value}, scaling.where).number(key) for value in values)


PARSERS: Mapping[str, Callable[[Fields, int, int, int], Scaling]] = {
    "linear": _parse_linear,
    "llama3": _parse_llama3,
    "dynamic": _parse_dynamic,
    "yarn": _parse_yarn,
    "longrope": _parse_longrope,
}
"""The parser of each scaling, by its name: of its parameters, `max_position_embeddings`, the original length and the
number of rotated elements of a head."""


def _periods(theta: float, size: int, device: torch.device | str) -> Tensor:
    """The reciprocals of unscaled frequencies, float32 [ceil(size / 2)]."""
    exponents: Tensor = torch.arange(0, size, 2, dtype=torch.float32, device=device) / size
    return theta**exponents
