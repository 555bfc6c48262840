"""What a CPU capture does with a launched function: its Python runs once, and its operations become nodes.

Views are made at once. Any other operation is not executed: it gets its outputs from the graph's memory and becomes a
node with frozen arguments, which a replay runs. weft's own kernels are native calls, copies and fills too; an operation
of torch that has no native form is a node that calls Python (its label begins with `PYTHON`). To read a value, which a
capture does not have, raises `GraphError`, as it fails on CUDA.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from weft import _core
from weft.errors import GraphError
from weft.runtime.graph_memory import GraphMemory
from weft.runtime.torch_nodes import TorchNodes

PYTHON = "python: "
"""How the label of a node that calls Python begins."""

_aten = torch.ops.aten
_ALLOCATIONS = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided}
_ALIASES = {_aten._unsafe_view, _aten._reshape_alias, _aten.detach, _aten.alias, _aten.lift_fresh}
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd  # operations that only call others
_COPIES = {_aten.copy_, _aten.clone, _aten.contiguous, _aten._to_copy}
_READERS = {
    torch.Tensor.tolist: "tolist()",
    torch.Tensor.numpy: "numpy()",
    torch.Tensor.__array__: "numpy",
}


class _Current(threading.local):
    recorder: Recorder | None = None


_current = _Current()


def current_recorder() -> Recorder | None:
    """That of the launched function that this thread captures; a node that happens to run on it meanwhile has none."""
    recorder = _current.recorder
    return None if recorder is None or _core.in_task() else recorder


class _Readers(TorchFunctionMode):
    """Refuses what reads a tensor's values past torch's dispatcher."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READERS:
            raise _cannot_read(_READERS[func])
        return func(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):
    """Makes torch's operations nodes of the capture of a stream: `stream` is its handle, `memory` the graph's, `label`
    what labels of nodes begin with."""

    def __init__(self, stream: int, memory: GraphMemory, label: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stream, self._memory, self._label = stream, memory, label

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing compiles under this mode, and skipping imports the compiler at the first op.
        return False

    def run(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Run `fn(*args)` once; its operations become nodes. Raises `GraphError` if something that it allocated
        outlives it: that memory is used again by what is captured next."""
        outer, _current.recorder = _current.recorder, self
        taken = self._memory.arena.num_taken
        try:
            with torch.inference_mode(), _Readers(), self:
                fn(*args)
        finally:
            _current.recorder = outer
        count = self._memory.arena.num_taken - taken
        if count > 0:
            raise GraphError(
                f"{self._label} keeps {count} tensors that it allocated during a capture; what outlives a launched "
                "function must be allocated before the capture"
            )

    # -- nodes

    def hold(self, values: Any) -> None:
        """Keep alive the tensors among `values`, which a node is about to name."""
        self._memory.hold(values)

    def add_kernel(self, name: str, kernel: _core.Kernel) -> None:
        """A node that runs a native call."""
        _core.launch_kernel(self._stream, kernel, self._memory, f"{self._label}: {name}")

    def add_python(self, name: str, call: Callable[[], object]) -> None:
        """A node that calls Python."""
        _core.launch_device(self._stream, _in_inference_mode, (call,), {}, f"{PYTHON}{self._label}: {name}")

    # -- operations of torch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # past the dispatcher nothing is to be refused
            return self._dispatched(func, args, kwargs or {})

    def _dispatched(self, func: Any, args: Any, kwargs: Any) -> Any:
        packet = func.overloadpacket
        if _core.in_task():
            return func(*args, **kwargs)
        if func.namespace == "weft":
            with self:
                return func(*args, **kwargs)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE):
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        if func.is_view or packet in _ALIASES:
            return func(*args, **kwargs)
        if packet in _ALLOCATIONS:
            return self._memory.allocate(_inferred(func, args, kwargs))
        return self._record(func, args, kwargs)

    def _record(self, func: Any, args: Any, kwargs: Any) -> Any:
        self.hold(args)
        self.hold(kwargs.values())
        if func.overloadpacket is _aten.copy_ and self._copies(args[0], args[1]):
            return args[0]
        if func._schema.is_mutable:
            self._add_call(func, args, kwargs)
            return kwargs.get("out", args[0] if args else None)
        inferred = _inferred(func, args, kwargs)
        if isinstance(inferred, Tensor):
            out = self._memory.allocate(inferred)
            if self._is_constant(func, args, kwargs):
                args, func = (func(*args, **kwargs),), _aten.clone.default
                self.hold(args)
            if func.overloadpacket not in _COPIES or not self._copies(out, args[0]):
                self._add_call(func, args, kwargs, out)
            return out
        if not isinstance(inferred, (tuple, list)) or not all(isinstance(part, Tensor) for part in inferred):
            raise _cannot_read(str(func))
        outs = type(inferred)(self._memory.allocate(part) for part in inferred)
        self._add_call(func, args, kwargs, outs)
        return outs

    def _is_constant(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether it gives the same at every replay: it reads no tensor, and draws nothing."""
        draws = torch.Tag.nondeterministic_seeded in func.tags
        return not draws and not any(isinstance(leaf, Tensor) for leaf in tree_leaves((args, kwargs)))

    def _add_call(self, func: Any, args: Any, kwargs: Any, outs: Any = None) -> None:
        """Add a node of func(*args, **kwargs), whose results go to `outs`, if there are any to keep: a native one where
        torch can be called so, else Python's."""
        calls = TorchNodes(_inferred)
        with torch.inference_mode(False):  # or its tensors could be written in that mode alone
            kernel = calls.call(func, args, kwargs, outs)
        if kernel is not None:
            self.hold(calls.constants)
            self.add_kernel(str(func), kernel)
            return
        args, outs = self._memory.of_node(args), self._memory.of_node(outs)
        kwargs = {key: self._memory.of_node(value) for key, value in kwargs.items()}
        self.add_python(str(func), lambda: _put(outs, func(*args, **kwargs)))

    def _copies(self, to: Tensor, source: Tensor) -> bool:
        """Add the node of to = source where that can be native."""
        if to.dtype != source.dtype or to.dim() > 4 or not (to.is_cpu and source.is_cpu):
            return False
        source = source.expand(to.shape)
        size = to.element_size()
        strides = ([s * size for s in tensor.stride()] for tensor in (to, source))
        kernel = _core.strided_copy_cpu(to.data_ptr(), source.data_ptr(), list(to.shape), *strides, size)
        self.add_kernel("copy", kernel)
        return True


def record(
    stream: int, memory: GraphMemory, fn: Callable[..., object], args: tuple[Any, ...], label: str
) -> None:
    """Run `fn(*args)` once; its operations become nodes of the capture of `stream`."""
    Recorder(stream, memory, label).run(fn, args)


def _inferred(func: Any, args: Any, kwargs: Any) -> Any:
    """What `func` would give, without memory. Raises `GraphError` where that depends on values."""
    if "device" in kwargs or not any(isinstance(arg, (Tensor, list, tuple)) for arg in args):
        kwargs = {**kwargs, "device": "meta"}
    try:
        return func(*_without_memory(args), **{key: _without_memory(value) for key, value in kwargs.items()})
    except (RuntimeError, NotImplementedError) as error:
        raise _cannot_read(str(func)) from error


def _without_memory(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_without_memory(part) for part in value)
    return value


def _put(outs: Any, values: Any) -> None:
    if isinstance(outs, Tensor):
        outs.copy_(values)
    elif outs is not None:
        for out, value in zip(outs, values, strict=True):
            out.copy_(value)


def _cannot_read(what: str) -> GraphError:
    return GraphError(
        f"{what} reads values on the host during a capture, where nothing is computed; compute on the device "
        "instead, as with torch.where, or do it before the capture"
    )


def _in_inference_mode(call: Callable[[], object]) -> None:
    with torch.inference_mode():
        call()
