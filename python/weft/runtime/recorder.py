"""Records a launched function during a CPU capture: its Python runs once, and its operations become nodes.

Views are made immediately. Any other operation is not executed. Its outputs are allocated in the graph's memory, and it
becomes a node with frozen arguments, which replays run. weft's own kernels and most of torch's operations become native
calls. The rest become nodes that call Python; their labels begin with `PYTHON`. Reading a tensor's value raises
`GraphError`, because nothing is computed during a capture. It fails on CUDA, too.

For example, a captured function may do this with `x` [2, 4] and `out` [8]::

    y = torch.softmax(x + 1, 1)   # two nodes; their outputs are memory of the graph
    z = y.view(8)                 # a view of that memory, made now; no node
    out.copy_(z)                  # a node, a strided copy
    if z[0] > 0: ...              # GraphError: nothing is computed yet
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from weft import _core
from weft.errors import GraphError
from weft.runtime.graph_memory import GraphMemory
from weft.runtime.operations import (
    ALLOCATIONS,
    Outputs,
    cannot_read,
    coalesced,
    fill_value,
    infer,
    is_composite,
    is_constant,
    is_view,
    outputs_of,
)
from weft.runtime.torch_internals import Operation, no_function_modes, no_modes, to_copy
from weft.runtime.torch_nodes import TorchNodes

PYTHON = "python: "
"""The label of a node that calls Python begins with this."""

cpu_operations: dict[Operation, Callable[..., Any]] = {}
"""The CPU implementations of weft's operations, by overload. They call `run_kernel` (`weft.ops.library`)."""

_aten = torch.ops.aten
_COPIES = {_aten.clone, to_copy}
_READERS = {
    torch.Tensor.tolist: "tolist()",
    torch.Tensor.numpy: "numpy()",
    torch.Tensor.__array__: "numpy",
    torch.Tensor.__dlpack__: "__dlpack__()",
    torch.Tensor.__repr__: "repr()",
}


class _Current(threading.local):
    recorder: Recorder | None = None


_current = _Current()


def current_recorder() -> Recorder | None:
    """The recorder of the function that this thread captures. None outside a capture, and inside a node that this
    thread runs during the capture."""
    recorder = _current.recorder
    return None if recorder is None or _core.in_task() else recorder


class _Readers(TorchFunctionMode):
    """Rejects functions that read a tensor's values and bypass torch's dispatcher."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READERS and not _core.in_task():
            raise cannot_read(_READERS[func])
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    """Passes torch's operations to a recorder."""

    def __init__(self, dispatch: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dispatch = dispatch

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing compiles under this mode, and True would import the compiler at the first op.
        return False

    def __torch_dispatch__(self, func: Operation, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Without this, `_Readers` would intercept the functions that torch calls inside an operation.
        with no_function_modes():
            return self._dispatch(func, args, kwargs or {})


class Recorder:
    """Context in which torch's operations of this thread become nodes of the capture of a stream.

    `stream` is the stream's handle, `memory` the memory of the graph, `label` the prefix of the nodes' labels.
    """

    def __init__(self, stream: int, memory: GraphMemory, label: str) -> None:
        self._stream, self._memory, self._label = stream, memory, label
        self._part = memory.arena.part(stream)
        self._first_take = self._part.num_takes
        self._operations = _Operations(self._dispatch)

    def __enter__(self) -> Recorder:
        self._outer = _current.recorder
        with ExitStack() as stack:
            if self._outer is not None:
                stack.enter_context(no_modes())
            stack.enter_context(_Readers())
            stack.enter_context(self._operations)
            self._stack = stack.pop_all()
        _current.recorder = self
        return self

    def __exit__(self, *exc: object) -> None:
        _current.recorder = self._outer
        self._stack.close()

    def finish(self) -> None:
        """Raise `GraphError` if a tensor that the launched function allocated is still alive."""
        # Work that is captured later may reuse the memory of a launched function's tensors.
        if self._num_kept():
            gc.collect()  # tensors held only by reference cycles are not in use
        if count := self._num_kept():
            raise GraphError(
                f"{self._label} keeps {count} tensors that it allocated during a capture; what outlives a launched "
                "function must be allocated before the capture"
            )

    def _num_kept(self) -> int:
        return sum(number >= self._first_take for number in self._part.taken)

    # -- nodes

    def hold(self, values: Any) -> None:
        """Keep the tensors among `values` alive for a node that will use them."""
        self._memory.hold(values)

    def add_kernel(self, name: str, kernel: _core.Kernel) -> None:
        """Add a node that runs a native call."""
        _core.launch_kernel(self._stream, kernel, self._memory, f"{self._label}: {name}")

    def add_python(self, name: str, call: Callable[[], object]) -> None:
        """Add a node that runs `call` in Python."""
        _core.launch_device(self._stream, _in_inference_mode, (call,), {}, f"{PYTHON}{self._label}: {name}")

    # -- operations of torch

    def _dispatch(self, func: Operation, args: Any, kwargs: Any) -> Any:
        if _core.in_task():
            return func(*args, **kwargs)
        if func in cpu_operations:
            self.hold(args)
            with self._operations:
                return cpu_operations[func](*args, **kwargs)
        if func.overloadpacket is _aten.lift_fresh:
            self._memory.keep(args[0])
            return args[0]
        if func.overloadpacket in ALLOCATIONS:
            return self._memory.allocate(self._stream, infer(func, args, kwargs))
        if is_composite(func):
            with self._operations:
                return func.decompose(*args, **kwargs)
        if is_view(func):
            return func(*args, **kwargs)
        return self._record(func, args, kwargs)

    def _record(self, func: Operation, args: Any, kwargs: Any) -> Any:
        self.hold(args)
        self.hold(kwargs.values())
        outputs = outputs_of(func, args, kwargs, lambda like: self._memory.allocate(self._stream, like))
        if outputs is None:
            return func(*args, **kwargs)
        is_native = self._add_copy(func, args, kwargs, outputs) or self._add_torch(
            func, args, kwargs, outputs
        )
        if not is_native:
            self._add_call(func, args, kwargs, outputs)
        return outputs.result

    def _add_torch(self, func: Operation, args: Any, kwargs: Any, outputs: Outputs) -> bool:
        """Add a node that calls torch natively. Returns False if there is no native call."""
        if not outputs.are_apart:
            return False
        calls = TorchNodes()
        with torch.inference_mode(False):  # tensors made in inference mode could be written only in that mode
            kernel = calls.call(func, args, kwargs, outputs.fresh)
        if kernel is None:
            return False
        for constant in calls.constants:
            self._memory.keep(constant)
        self.add_kernel(str(func), kernel)
        return True

    def _add_call(self, func: Operation, args: Any, kwargs: Any, outputs: Outputs) -> None:
        """Add a node that calls func(*args, **kwargs) in Python."""
        of_node = self._memory.of_node
        args, kwargs = of_node(args), {key: of_node(value) for key, value in kwargs.items()}
        outputs = Outputs(None, of_node(outputs.fresh))
        self.add_python(str(func), lambda: outputs.put(func(*args, **kwargs)))

    def _add_copy(self, func: Operation, args: Any, kwargs: Any, outputs: Outputs) -> bool:
        """Add a copy for an operation that only copies a tensor, fills with a number, or gives the same result at every
        replay. Returns False for other operations, and if there is no native copy."""
        result, value = outputs.result, fill_value(func, args)
        if value is not None:
            return self._copy(result, self._keep(torch.full((), value, dtype=result.dtype)), "fill")
        if isinstance(outputs.fresh, Tensor) and is_constant(func, args, kwargs):
            return self._copy(result, self._keep(func(*args, **kwargs)), "constant")
        if func.overloadpacket in _COPIES:
            return self._copy(result, args[0], "copy")
        return func.overloadpacket is _aten.copy_ and self._copy(result, args[1], "copy")

    def _keep(self, constant: Tensor) -> Tensor:
        self._memory.keep(constant)
        return constant

    def _copy(self, to: Tensor, source: Tensor, name: str) -> bool:
        """Add a native node for `to` = `source`. Returns False if that is not possible."""
        if to.numel() == 0:
            return True
        sizes, strides = coalesced(to.shape, to.stride(), source.expand(to.shape).stride())
        if not _has_same_bits(to, source) or len(sizes) > 4:
            return False
        size = to.element_size()
        to_strides, source_strides = ([size * step for step in steps] for steps in strides)  # in bytes
        self.add_kernel(
            name,
            _core.strided_copy_cpu(to.data_ptr(), source.data_ptr(), sizes, to_strides, source_strides, size),
        )
        return True


def record(
    stream: int, memory: GraphMemory, fn: Callable[..., object], args: tuple[Any, ...], label: str
) -> None:
    """Run `fn(*args)` once. Its operations become nodes of the capture of `stream`."""
    recorder = Recorder(stream, memory, label)
    with torch.inference_mode(), recorder:
        fn(*args)
    recorder.finish()


def _has_same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether equal values have the same bytes in both tensors."""
    is_lazy = any(tensor.is_conj() or tensor.is_neg() for tensor in (a, b))
    return a.dtype == b.dtype and a.is_cpu and b.is_cpu and not is_lazy


def _in_inference_mode(call: Callable[[], object]) -> None:
    with torch.inference_mode():
        call()
