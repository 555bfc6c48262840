"""Native calls of torch operations with frozen arguments, through torch's stable C interface.

The interface has no `Scalar`s. For an operation on a scalar, the call uses the overload for tensors, if the result has
the same dtype. Operations that the interface can't express have no native call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from weft import _core
from weft.runtime.operations import infer
from weft.runtime.torch_internals import Argument, Operation

_NUMBERS = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.bool: 11, torch.bfloat16: 15,
}  # fmt: skip
"""The numbers of torch's `ScalarType`, by dtype."""

_BY_NUMBER = {"aten::pow", "aten::pow_"}
"""Operations whose results for a number differ from those for a tensor with the same value."""


class _NotExpressible(Exception):
    """Raised for an argument that the C interface can't express."""


class TorchNodes:
    """Makes native calls. `constants` are tensors that the calls read; they must live as long as the calls."""

    def __init__(self) -> None:
        self.constants: list[Tensor] = []
        self._like = torch.empty(())

    def call(
        self, func: Operation, args: Sequence[Any], kwargs: dict[str, Any], outs: Any
    ) -> _core.Kernel | None:
        """Make a call of `func` that writes its results to `outs`: one tensor, several, or None for an operation in
        place. Returns None if the C interface can't express the call."""
        if not _core.has_torch_calls() or func.namespace != "aten":
            return None
        func, args = self._rewritten(func, args)
        try:
            return self._add(func, args, kwargs, outs) or self._call(func, args, kwargs, outs)
        except _NotExpressible:
            return None

    def _call(self, func: Operation, args: Sequence[Any], kwargs: dict[str, Any], outs: Any) -> _core.Kernel:
        if any(_is_scalar(argument) for argument in func._schema.arguments):
            func, args, kwargs = self._on_tensors(func, args, kwargs)
        self._like = next((arg for arg in args if isinstance(arg, Tensor)), torch.empty(()))
        arguments = [
            self._argument(spec, _value(spec, i, args, kwargs))
            for i, spec in enumerate(func._schema.arguments)
        ]
        name = func._schema.name
        results = [outs] if isinstance(outs, Tensor) else list(outs or ())
        return _core.torch_call(
            name,
            func._schema.overload_name,
            arguments,
            [_described(out) for out in results],
            len(func._schema.returns),
        )

    def _add(
        self, func: Operation, args: Sequence[Any], kwargs: dict[str, Any], outs: Any
    ) -> _core.Kernel | None:
        sign = {"aten::add": 1.0, "aten::sub": -1.0, "aten::add_": 1.0, "aten::sub_": -1.0}.get(
            func._schema.name
        )
        if sign is None or func._schema.overload_name != "Tensor" or not isinstance(args[0], Tensor):
            return None
        out = args[0] if outs is None else outs
        other = args[1] if isinstance(args[1], Tensor) else self._constant(args[1], args[0])
        if torch.result_type(args[0], args[1]) != torch.result_type(args[0], other):
            raise _NotExpressible
        # The native call passes alpha as a float, which torch refuses for integers.
        if not out.is_floating_point():
            raise _NotExpressible
        alpha = sign * float(kwargs.get("alpha", 1))
        return _core.torch_add(_described(args[0]), _described(other), alpha, _described(out))

    def _rewritten(self, func: Operation, args: Sequence[Any]) -> tuple[Operation, Sequence[Any]]:
        """An operation with the same bits that the interface can express, for some on scalars; else the same one."""
        name, aten = func._schema.name, cast("Any", torch.ops.aten)
        if name == "aten::pow" and func._schema.overload_name == "Tensor_Scalar" and args[1] == 2:
            return aten.mul.Tensor, (args[0], args[0])
        if name == "aten::scatter_" and func._schema.overload_name == "value":
            target, dim, index, value = args
            source = torch.full(index.shape, value, dtype=target.dtype)
            self.constants.append(source)
            return aten.scatter_.src, (target, dim, index, source)
        return func, args

    def _on_tensors(
        self, func: Operation, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Operation, list[Any], dict[str, Any]]:
        """The overload that takes tensors where `func` takes scalars, with its arguments."""
        if func._schema.name in _BY_NUMBER:
            raise _NotExpressible
        like = next((arg for arg in args if isinstance(arg, Tensor)), None)
        names = [argument.name for argument in func._schema.arguments]
        for overload in func.overloadpacket.overloads():
            candidate = getattr(func.overloadpacket, overload)
            arguments = candidate._schema.arguments
            if like is None or [a.name for a in arguments] != names or any(map(_is_scalar, arguments)):
                continue
            values = [_value(spec, i, args, kwargs) for i, spec in enumerate(func._schema.arguments)]
            changed = [
                self._constant(value, like) if _is_scalar(spec) and value is not None else value
                for spec, value in zip(func._schema.arguments, values, strict=True)
            ]
            by_name = {
                spec.name: value for spec, value in zip(arguments, changed, strict=True) if spec.kwarg_only
            }
            in_order = [value for spec, value in zip(arguments, changed, strict=True) if not spec.kwarg_only]
            if _alike(infer(candidate, in_order, by_name), infer(func, args, kwargs)):
                return candidate, in_order, by_name
        raise _NotExpressible

    def _constant(self, value: Any, like: Tensor) -> Tensor:
        """A number as a 0-dimensional tensor. Its dtype is the one to which torch promotes `like` and the number."""
        if not isinstance(value, (bool, int, float)):
            raise _NotExpressible
        constant = torch.full((), value, dtype=torch.result_type(like, value))
        # torch itself rounds numbers to float32.
        if constant.item() != value and constant.dtype != torch.float32:
            raise _NotExpressible
        self.constants.append(constant)
        return constant

    def _argument(self, spec: Argument, value: Any) -> _core.TorchArgument:
        kind = str(spec.type)
        optional = kind.startswith("Optional[")
        return self._typed_argument(
            kind.removeprefix("Optional[").removesuffix("]") if optional else kind, value, optional
        )

    def _typed_argument(self, kind: str, value: Any, optional: bool) -> _core.TorchArgument:
        make = _core.TorchArgument
        if value is None:
            if optional:
                return make.none()
            raise _NotExpressible
        if kind == "Tensor":
            tensor = value if isinstance(value, Tensor) else self._constant(value, self._like)
            return make.tensor(_described(tensor), optional)
        if kind.startswith("List[") and isinstance(value, (list, tuple)):
            inner = kind.removeprefix("List[").removesuffix("]")
            is_optional = inner.startswith("Optional[")
            inner = inner.removeprefix("Optional[").removesuffix("]") if is_optional else inner
            return make.list([self._typed_argument(inner, item, is_optional) for item in value], optional)
        if kind in ("int", "SymInt", "bool") and isinstance(value, int):
            return make.integer(int(value), optional)
        if kind == "int" and isinstance(value, torch.dtype):
            return make.integer(_NUMBERS[value], optional)
        if kind == "float" and isinstance(value, (int, float)):
            return make.number(float(value), optional)
        if kind == "Device" and optional and torch.device(value).type == "cpu":
            return make.none()
        raise _NotExpressible


def _is_scalar(spec: Argument) -> bool:
    """Whether a schema's argument is a `Scalar`; torch prints that type as "number"."""
    return "number" in str(spec.type)


def _value(spec: Argument, index: int, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if index < len(args) and not spec.kwarg_only:
        return args[index]
    return kwargs.get(spec.name, spec.default_value if spec.has_default_value() else None)


def _described(tensor: Tensor) -> _core.TorchTensor:
    if tensor.dtype not in _NUMBERS or not tensor.is_cpu or tensor.is_neg():
        raise _NotExpressible
    return _core.TorchTensor(
        tensor.data_ptr(), list(tensor.shape), list(tensor.stride()), _NUMBERS[tensor.dtype]
    )


def _alike(first: Any, second: Any) -> bool:
    """Whether two results have the same shapes and dtypes."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first.shape == second.shape and first.dtype == second.dtype
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)) and len(first) == len(second):
        return all(_alike(a, b) for a, b in zip(first, second, strict=True))
    return False
