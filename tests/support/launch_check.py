"""Checks the rule for launched functions: they have the same effect whether their Python runs once or at every
replay.

`check_on_fake_cuda` runs a function on fake tensors of device `cuda`, without a GPU. Reading a value on the host, or
mixing devices, raises. `check_recording` captures the function on the CPU, which runs its Python once, and compares
a replay of the graph with a run of the function.
"""

from __future__ import annotations

import copy
import ctypes
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from weft.errors import GraphError
from weft.runtime import cpu

LaunchedFunction = Callable[..., object]


def check_launched(fn: LaunchedFunction, *args: Any, host: Iterable[torch.Tensor] = ()) -> None:
    """Run both checks. Raises `GraphError`, which says which rule `fn(*args)` breaks."""
    check_on_fake_cuda(fn, *args, host=host)
    check_recording(fn, *args)


def check_on_fake_cuda(fn: LaunchedFunction, *args: Any, host: Iterable[torch.Tensor] = ()) -> None:
    """Run `fn` with fake tensors on `cuda` in place of those in `args`.

    Tensors inside containers, modules and objects are replaced too. Tensors that share storage with one of `host`,
    such as pinned buffers, become fake tensors on the CPU.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=False)
    mapper = _FakeMapper(mode, {t.untyped_storage().data_ptr() for t in host})
    fake_fn = mapper.map(fn)
    fake_args = mapper.map(args)
    with cuda_device_guard(), mode:
        try:
            result = fake_fn(*fake_args)
        except Exception as error:
            raise GraphError(f"{_name(fn)} can't run on CUDA inside a graph: {error}") from error
    _refuse_result(fn, result)


def check_recording(fn: LaunchedFunction, *args: Any, between: Callable[[], object] = lambda: None) -> None:
    """Capture `fn`, then compare a run of it with a replay of the graph, bit by bit.

    `fn` runs once before, to find the memory that it uses. The run and the replay then start from the same state:
    that after `between()`, which may write other inputs.
    """
    inputs = _Inputs()
    with inputs:
        _refuse_result(fn, fn(*args))
    graph, stream = cpu.CUDAGraph(), cpu.Stream()
    with cpu.graph(graph, stream=stream, capture_error_mode="thread_local"):
        stream.launch(fn, *args)
    between()
    before = inputs.snapshot()
    fn(*args)
    expected = inputs.snapshot()
    inputs.restore(before)
    graph.launch_on(stream.handle)
    stream.synchronize()
    if not all(torch.equal(a, b) for a, b in zip(inputs.snapshot(), expected, strict=True)):
        raise GraphError(
            f"{_name(fn)} gives another result when it is replayed: its Python depends on something "
            "that a graph freezes; compute that on the device, or make it part of the graph's key"
        )


@contextmanager
def cuda_device_guard() -> Iterator[None]:
    """Let fake CUDA tensors be indexed in a torch without CUDA. Indexing looks up CUDA's device guard, so this lends
    it the one of `meta`, which does nothing."""
    if torch.backends.cuda.is_built():
        yield
        return
    cuda, meta = torch._C._autograd.DeviceType.CUDA.value, torch._C._autograd.DeviceType.Meta.value
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * (meta + 1)).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    guards[cuda] = guards[meta]
    try:
        yield
    finally:
        guards[cuda] = None


def _refuse_result(fn: LaunchedFunction, result: object) -> None:
    if result is not None:
        raise GraphError(f"{_name(fn)} returned {type(result).__name__}; a launched function returns nothing")


def _name(fn: object) -> str:
    return getattr(fn, "__qualname__", type(fn).__qualname__)


class _Inputs(TorchDispatchMode):
    """Finds the memory that a function uses but does not allocate."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen: dict[int, torch.UntypedStorage] = {}
        self._found: list[torch.UntypedStorage] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise GraphError("a launched function reads a device value on the host; keep it in a tensor")
        self._found += self._new((args, kwargs))
        result = func(*args, **(kwargs or {}))
        self._new(result)
        return result

    def snapshot(self) -> list[torch.Tensor]:
        """Copy all of that memory, as bytes."""
        return [self._bytes(storage).clone() for storage in self._found]

    def restore(self, snapshot: list[torch.Tensor]) -> None:
        """Write the copies back."""
        for storage, saved in zip(self._found, snapshot, strict=True):
            self._bytes(storage).copy_(saved)

    def _new(self, values: Any) -> list[torch.UntypedStorage]:
        """Return storages that were not seen before. They are kept alive, so that no other storage gets their
        address."""
        storages = [v.untyped_storage() for v in tree_leaves(values) if isinstance(v, torch.Tensor)]
        new = {s.data_ptr(): s for s in storages if s.nbytes() and s.data_ptr() not in self._seen}
        self._seen.update(new)
        return list(new.values())

    @staticmethod
    def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8).set_(storage)


class _FakeMapper:
    """Copies arguments, with a fake tensor in place of each tensor. Shared objects stay shared."""

    def __init__(self, mode: FakeTensorMode, host_storages: set[int]) -> None:
        self._mode, self._host = mode, host_storages
        self._done: dict[int, tuple[Any, Any]] = {}  # id -> (original, which keeps the id taken; copy)

    def map(self, value: Any) -> Any:
        if id(value) in self._done:
            return self._done[id(value)][1]
        if isinstance(value, torch.Tensor):
            return self._keep(value, self._fake(value))
        if isinstance(value, (list, tuple, dict)):
            leaves, spec = tree_flatten(value, is_leaf=lambda v: v is not value)
            return self._keep(value, tree_unflatten([self.map(v) for v in leaves], spec))
        if isinstance(value, torch.device):
            return torch.device("cuda") if value.type == "cpu" else value
        if hasattr(type(value), "__del__"):  # a copy's __del__ would free the same thing again
            return value
        bound = getattr(value, "__self__", None)
        if bound is not None and not isinstance(bound, type) and hasattr(value, "__name__"):
            return getattr(self.map(bound), value.__name__)
        if isinstance(value, (type, str, int, float, bool, torch.dtype)) or (
            callable(value) and not _has_state(value)
        ):
            return value
        if hasattr(value, "__dict__") or dataclasses.is_dataclass(value):
            return self._object(value)
        return value

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        on_host = tensor.is_pinned() or tensor.untyped_storage().data_ptr() in self._host
        device = "cpu" if on_host else "cuda"
        with self._mode:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)

    def _object(self, value: Any) -> Any:
        twin = self._keep(value, copy.copy(value))
        names = list(getattr(value, "__dict__", {}))
        names += (
            [f.name for f in dataclasses.fields(value) if f.name not in names]
            if dataclasses.is_dataclass(value)
            else []
        )
        for name in names:
            object.__setattr__(twin, name, self.map(getattr(value, name)))
        return twin

    def _keep(self, original: Any, replacement: Any) -> Any:
        self._done[id(original)] = (original, replacement)
        return replacement


def _has_state(value: Any) -> bool:
    if isinstance(value, (type, FunctionType)):
        return False
    return dataclasses.is_dataclass(value) or bool(getattr(value, "__dict__", None))
