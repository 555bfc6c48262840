"""Groups of inputs with one factor, where a checkpoint names the group of each input ("act-order")."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weft.models.quantized.blocks import OUTPUTS_AT_ONCE, unpacked_inputs
from weft.models.quantized.method import Parts, refuse
from weft.ops.huge_pages import temporary


def are_in_order(parts: Parts, name: str, groups: Tensor, num_groups: int, group: int) -> bool:
    """Whether each group has the next `group` inputs. `groups` is tensor `name`, integers [in]: the group of each
    input. If one is -1, the tensor was never filled, and groups are in order. Raises `ModelError` for other numbers
    that are no groups."""
    if (groups == -1).any():
        return True
    if not ((groups >= 0) & (groups < num_groups)).all():
        raise refuse(parts, name, f"has a group outside of 0 to {num_groups - 1}")
    return torch.equal(groups.long(), torch.arange(len(groups)) // group)


def are_ordered(parts: Parts, name: str, group: int) -> bool:
    """Whether tensor `name`, the group of each input, is there, and its groups have not the next `group` inputs each
    (0: one group has all). Raises `ModelError` for numbers that are no groups."""
    if name not in parts:
        return False
    groups = parts.take_small(name, ("I32", "I64"), *parts.shape_of(name))
    group = group or len(groups)
    return not are_in_order(parts, name, groups, -(-len(groups) // group), group)


def order_by_group(groups: Tensor, group: int) -> Tensor | None:
    """The inputs, group by group, int32 [in]: the order in which blocks have them. None if a group but the last has not
    `group` inputs, so that no blocks fit."""
    order = groups.argsort(stable=True)
    fits = torch.equal(groups[order].long(), torch.arange(len(groups)) // group)
    return order.int() if fits else None


def reordered(words: Tensor, bits: int, order: Tensor) -> Tensor:
    """Words of codes [in * bits / 32, out], of which the inputs are in another order: as many words."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32).view(1, -1, 1)
    result = torch.empty_like(words)
    for begin in range(0, words.shape[1], OUTPUTS_AT_ONCE):  # so that few codes are in memory in 32 bits
        place = slice(begin, begin + OUTPUTS_AT_ONCE)
        codes = unpacked_inputs(words[:, place], bits).index_select(0, order)
        # No two codes have a bit in common, so the sum is their union. It wraps, as int32 does.
        result[:, place] = (codes.unflatten(0, (-1, 32 // bits)) << shifts).sum(1, dtype=torch.int32)
    return result


def ordered_numbers(
    read: Callable[[slice], Tensor], zeros: Tensor, scales: Tensor, groups: Tensor, dtype: torch.dtype
) -> Tensor:
    """The numbers [out, in] of a matrix whose groups are in no order: factor * (code - zero). `read` returns the codes
    of some outputs, int32 [in, outputs]; `zeros` and `scales` are [groups, out], `groups` integers [in]."""
    num_outputs, groups = scales.shape[1], groups.long()
    numbers = temporary((num_outputs, len(groups)), dtype)
    for begin in range(0, num_outputs, OUTPUTS_AT_ONCE):  # so that few codes are in memory in 32 bits
        place = slice(begin, begin + OUTPUTS_AT_ONCE)
        zero, scale = zeros[:, place].contiguous(), scales[:, place].float().contiguous()
        codes = read(place) - zero.index_select(0, groups)
        numbers[place] = (codes * scale.index_select(0, groups)).t()
    return numbers
