"""The private names of torch that weft uses, all of them, each with its use.

Any version of torch may change them. `missing()` lists those that the installed one lacks, and a test asserts that
there are none. A call of a missing one raises `InterfaceError`. `TorchDispatchMode` is not here: torch documents it,
although its module has a private name.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NoReturn, Protocol

import torch
import torch.utils._python_dispatch  # so that its names can be looked up

from weft.errors import InterfaceError

_names: list[str] = []  # of the names below that this build of torch should have


def _is_there(name: str) -> bool:
    try:
        attrgetter(name.removeprefix("torch."))(torch)
    except AttributeError:
        return False
    return True


def _private(name: str, *, needs_cuda: bool = False) -> Any:
    """The object with a dotted name; if there is none, a function that raises `InterfaceError`."""
    if not needs_cuda or torch.backends.cuda.is_built():
        _names.append(name)
    if _is_there(name):
        return attrgetter(name.removeprefix("torch."))(torch)

    def refuse(*_: object, **__: object) -> NoReturn:
        raise InterfaceError(
            f"torch {torch.__version__} has no {name}, which weft needs; install another torch"
        )

    return refuse


# -- modes

# Context in which no `TorchFunctionMode` sees the calls. A recorder's mode would see the parts of each operation.
no_function_modes = _private("torch._C.DisableTorchFunction")
# Context in which no mode of either kind is active. A recorder inside another one must not pass its work to that one.
no_modes = _private("torch.utils._python_dispatch._disable_current_modes")
# The number of active `TorchDispatchMode`s. Without one, weft's operations skip torch's dispatcher.
num_dispatch_modes = _private("torch._C._len_torch_dispatch_stack")
# `torch.inference_mode` without its Python wrapper, which costs microseconds at each node.
bare_inference_mode = _private("torch._C._InferenceMode")

# -- tensors

# A tensor whose values are negated when they are read, in the same memory. A node's alias must keep that property.
neg_view = _private("torch._neg_view")
# A weak reference to the memory of tensors, which outlives each tensor's Python object.
storage_weak_ref = _private("torch.multiprocessing.reductions.StorageWeakRef")

# -- operations

# Key of the CPU's kernels, to ask whether an operation has one of its own there.
cpu_key = _private("torch._C.DispatchKey.CPU")
# The operation behind `Tensor.to`, and two views that `reshape` may become. They have no public form.
to_copy = _private("torch.ops.aten._to_copy")
unsafe_view = _private("torch.ops.aten._unsafe_view")
reshape_alias = _private("torch.ops.aten._reshape_alias")
# An operation that `tensor[index] = value` may become; the other is `index_put_`.
index_put_impl = _private("torch.ops.aten._index_put_impl_")

# -- captures on CUDA

# End the use of a memory pool if `capture_end` could not. `torch.cuda.CUDAGraph` has no other way.
end_allocate_to_pool = _private("torch._C._cuda_endAllocateToPool", needs_cuda=True)
release_pool = _private("torch._C._cuda_releasePool", needs_cuda=True)


class AliasInfo(Protocol):
    """How an argument or a result shares memory."""

    before_set: set[str]  # the names of the memory; a result with the name of an argument is that argument
    is_write: bool  # whether the operation writes it


class Argument(Protocol):
    """An argument or a result in an operation's schema."""

    name: str
    type: object  # its text is the type's name, such as "Optional[List[int]]"
    kwarg_only: bool
    alias_info: AliasInfo | None
    default_value: Any

    def has_default_value(self) -> bool: ...


class Schema(Protocol):
    """An operation's signature."""

    name: str  # with the namespace, as "aten::add"
    overload_name: str
    arguments: Sequence[Argument]
    returns: Sequence[Argument]


class Operation(Protocol):
    """An operation as a dispatch mode gets it: torch's `OpOverload`, as far as weft uses it."""

    namespace: str
    overloadpacket: Any  # the operation without the choice of an overload, as `torch.ops.aten.add`
    tags: Sequence[torch.Tag]
    is_view: bool  # whether the result is only a view
    _schema: Schema

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def _can_decompose(self) -> bool: ...  # whether `decompose` works
    def decompose(self, *args: Any, **kwargs: Any) -> Any: ...  # computes by other operations
    def has_kernel_for_dispatch_key(self, key: Any) -> bool: ...


def missing() -> list[str]:
    """The names, and the attributes of operations, that the installed torch lacks."""
    operation = torch.ops.aten.add_.Tensor
    schema = getattr(operation, "_schema", None)
    argument = next(iter(getattr(schema, "arguments", ())), None)
    parts: list[tuple[str, object, type]] = [
        ("OpOverload", operation, Operation),
        ("FunctionSchema", schema, Schema),
        ("Argument", argument, Argument),
        ("AliasInfo", getattr(argument, "alias_info", None), AliasInfo),
    ]
    return [name for name in _names if not _is_there(name)] + [
        f"{name}.{attribute}"
        for name, part, protocol in parts
        for attribute in _attributes(protocol)
        if not hasattr(part, attribute)
    ]


def _attributes(protocol: type) -> list[str]:
    methods = [name for name, value in vars(protocol).items() if inspect.isfunction(value)]
    return [*protocol.__annotations__, *(name for name in methods if not name.startswith("__"))]
