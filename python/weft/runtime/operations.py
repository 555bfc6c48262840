"""Properties of torch's operations that a capture needs: views, written arguments, shapes of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.errors import GraphError
from weft.runtime.torch_internals import (
    Argument,
    Operation,
    cpu_key,
    index_put_impl,
    reshape_alias,
    unsafe_view,
)

_aten = torch.ops.aten
_ALIASES = {unsafe_view, reshape_alias, _aten.detach, _aten.alias}
_MOVING = {_aten.resize_, _aten.resize_as_, _aten.set_}
_FILLS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((_aten.zero_, _aten.zeros, _aten.zeros_like, _aten.new_zeros), lambda *_: 0),
    **dict.fromkeys((_aten.ones, _aten.ones_like, _aten.new_ones), lambda *_: 1),
    **dict.fromkeys((_aten.fill_, _aten.full, _aten.full_like), lambda _, value: value),
    _aten.new_full: lambda _, size, value: value,
}
ALLOCATIONS = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided}
"""Operations that allocate and compute nothing."""
_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def cannot_read(what: str) -> GraphError:
    """Make the error for an operation that reads a value on the host during a capture."""
    return GraphError(
        f"{what} reads values on the host during a capture, where nothing is computed; compute on the device "
        "instead, as with torch.where, or do it before the capture"
    )


def is_composite(func: Operation) -> bool:
    """Whether an operation decomposes into others, such as `reshape` into a view or a copy."""
    return bool(func._can_decompose()) and not func.has_kernel_for_dispatch_key(cpu_key)


def is_view(func: Operation) -> bool:
    """Whether an operation that is not composite only makes a view. Raises `GraphError` if it replaces a tensor's
    memory."""
    if func.overloadpacket in _MOVING:
        raise GraphError(f"{func} gives a tensor other memory during a capture; do that before")
    return func.is_view or func.overloadpacket in _ALIASES or torch.Tag.inplace_view in func.tags


def fill_value(func: Operation, args: Any) -> Any:
    """The number that an operation fills its result with; None if the operation is not a fill."""
    value = _FILLS[func.overloadpacket](*args) if func.overloadpacket in _FILLS else None
    return None if isinstance(value, Tensor) else value


class Outputs(NamedTuple):
    """The outputs of an operation. `result` is the value that it returns. `fresh` has only the newly allocated tensors,
    with None in place of an argument that the operation writes."""

    result: Any
    fresh: Any

    @property
    def are_apart(self) -> bool:
        """Whether the outputs are all written arguments, or all fresh single tensors. A native call needs that."""
        parts = self.fresh if isinstance(self.fresh, tuple) else (self.fresh,)
        return self.fresh is None or all(isinstance(part, Tensor) for part in parts)

    def put(self, values: Any) -> None:
        """Copy the operation's results to the fresh tensors."""
        _put(self.fresh, values)


def outputs_of(
    func: Operation, args: Any, kwargs: Any, allocate: Callable[[Tensor], Tensor]
) -> Outputs | None:
    """The outputs of an operation that only replays will compute. `allocate` maps meta tensors to memory for fresh
    outputs.

    Returns None if the operation returns shapes and the like instead of tensors. Raises `GraphError` if a shape or a
    number that it returns depends on tensors' values.
    """
    returns = func._schema.returns
    written = _written(func, args, kwargs)
    given = [written.get(_alias(value)) for value in returns]
    if _picks_by_mask(func, args):
        raise cannot_read(str(func))
    if all(value is not None for value in given):
        _check_shapes(func, args, kwargs)
        return Outputs(_one_or_all(given), None)
    inferred = infer(func, args, kwargs)
    parts = inferred if len(returns) > 1 else (inferred,)
    if not all(_is_tensors(part) for part in parts):
        if _READS & set(func.tags):
            raise cannot_read(str(func))
        return None
    fresh = [
        None if old is not None else _map(part, allocate) for old, part in zip(given, parts, strict=True)
    ]
    result = [new if old is None else old for old, new in zip(given, fresh, strict=True)]
    return Outputs(_one_or_all(result), _one_or_all(fresh))


def is_constant(func: Operation, args: Any, kwargs: Any) -> bool:
    """Whether the result is the same at every replay: the operation reads no tensor and draws no random numbers."""
    draws = torch.Tag.nondeterministic_seeded in func.tags
    return not draws and not any(_has_tensors(arg) for arg in (*args, *kwargs.values()))


def infer(func: Operation, args: Any, kwargs: Any) -> Any:
    """The results of an operation as meta tensors. Raises `GraphError` if their shapes depend on values, or if torch
    can't infer them."""
    kwargs = {key: None if isinstance(value, torch.Generator) else value for key, value in kwargs.items()}
    if "device" in kwargs or not any(_has_tensors(arg) for arg in (*args, *kwargs.values())):
        kwargs["device"] = "meta"
    try:
        return func(*_map(args, _without_memory), **{k: _map(v, _without_memory) for k, v in kwargs.items()})
    except RuntimeError as error:
        if _READS & set(func.tags) and not _is_index(func):
            raise cannot_read(str(func)) from error
        if isinstance(error, NotImplementedError):
            raise GraphError(
                f"{func} can't be captured: torch can't infer its results without running it"
            ) from error
        raise


def coalesced(sizes: Sequence[int], *strides: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Merge adjacent dimensions where the strides of all tensors allow it. `sizes` is the shape of all tensors,
    `strides` has the strides of each. Returns the new shape and the new strides of each tensor."""
    merged: list[int] = []
    merged_strides: list[list[int]] = [[] for _ in strides]
    for size, *steps in zip(sizes, *strides, strict=True):
        if size == 1:
            continue
        of_tensors = list(zip(merged_strides, steps, strict=True))
        if merged and all(tensor_strides[-1] == size * step for tensor_strides, step in of_tensors):
            merged[-1] *= size
            for tensor_strides, step in of_tensors:
                tensor_strides[-1] = step
            continue
        merged.append(size)
        for tensor_strides, step in of_tensors:
            tensor_strides.append(step)
    return merged, merged_strides


def _written(func: Operation, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments that an operation writes, by their alias sets in its schema.

    For `x.add_(y)` they are {"a": x}. The schema is `add_.Tensor(Tensor(a!) self, Tensor other, ...) -> Tensor(a!)`,
    where `!` marks a write. The result has the set of `self`, so it is `self` and not a fresh tensor.
    """
    found = {}
    for number, argument in enumerate(func._schema.arguments):
        name = _alias(argument)
        if name:
            by_place = number < len(args) and not argument.kwarg_only
            found[name] = args[number] if by_place else kwargs.get(argument.name)
    return found


def _alias(value: Argument) -> str:
    info = value.alias_info
    return min(info.before_set, default="") if info is not None and info.is_write else ""


def _check_shapes(func: Operation, args: Any, kwargs: Any) -> None:
    """Raise the errors that the operation would raise for its arguments, and `GraphError` for an `out` whose shape
    differs from the result's."""
    if not func._schema.returns:
        return
    outs = [kwargs.get(a.name) for a in func._schema.arguments if a.kwarg_only and _alias(a)]
    inferred = infer(func, args, kwargs)
    found = inferred if isinstance(inferred, tuple) else (inferred,)
    for out, part in zip(outs, found, strict=False):
        # The operation would resize `out` only when it runs, after other nodes were captured with the old shape.
        if isinstance(out, Tensor) and isinstance(part, Tensor) and out.shape != part.shape:
            raise GraphError(f"{func} gives {list(part.shape)}, and its out is {list(out.shape)}")


def _picks_by_mask(func: Operation, args: Any) -> bool:
    """Whether the operation selects elements by masks, so that a shape depends on values."""
    if not _is_index(func):
        return False
    is_masked = any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    # Writing one number to all selected elements does not depend on how many there are.
    return is_masked and not (len(args) > 2 and args[2].numel() == 1)


def _is_index(func: Operation) -> bool:
    return func.overloadpacket in (_aten.index, _aten.index_put_, _aten.index_put, index_put_impl)


def _without_memory(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _map(value: Any, fn: Callable[[Tensor], Any]) -> Any:
    """`value` with `fn` applied to its tensors, in lists and tuples too."""
    if isinstance(value, Tensor):
        return fn(value)
    return type(value)(_map(part, fn) for part in value) if isinstance(value, (list, tuple)) else value


def _has_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, (list, tuple)) and any(map(_has_tensors, value)))


def _is_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, (list, tuple)) and all(map(_is_tensors, value)))


def _put(outs: Any, values: Any) -> None:
    if isinstance(outs, Tensor):
        outs.copy_(values)
    elif outs is not None:
        for out, value in zip(outs, values, strict=True):
            _put(out, value)


def _one_or_all(values: list[Any]) -> Any:
    """`values` in the form in which an operation returns them: None if empty, the value itself if there is one, else a
    tuple."""
    return None if not values else values[0] if len(values) == 1 else tuple(values)
