"""Helpers that register, check and launch weft's operations, `torch.ops.weft.*`.

The operations are opaque to torch and have a fake implementation. They are registered with `torch.library.Library`
because the wrapper of `custom_op` costs many microseconds per call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from weft import _core
from weft.errors import DriverError, InputError, InterfaceError
from weft.runtime.recorder import cpu_operations, current_recorder
from weft.runtime.torch_internals import Operation, num_dispatch_modes

_LIBRARY: Any = torch.library.Library("weft", "FRAGMENT")

DTYPE_CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""The kernels' numbers of the dtypes of logits and weights."""


cuda_operations: dict[str, Callable[..., Any]] = {}
"""The implementations on CUDA, by the operation's name."""


def _return_none(*args: object) -> None:
    return None


def register(
    schema: str,
    *,
    cpu: Callable[..., Any],
    cuda: Callable[..., Any],
    fake: Callable[..., Any] = _return_none,
) -> Callable[..., Any]:
    """Define `weft::<schema>` and return a function that calls it. `fake` is the implementation for fake tensors
    (default: it returns None)."""
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, cpu, "CPU")
    _LIBRARY.impl(name, cuda, "CUDA")
    torch.library.register_fake(f"weft::{name}", fake, lib=_LIBRARY)
    op: Operation = getattr(torch.ops.weft, name).default
    cpu_operations[op] = cpu
    cuda_operations[name] = cuda

    def call(tensor: Tensor, *args: Any) -> Any:
        # Without a dispatch mode, torch's dispatcher would call the same CPU function, some microseconds later.
        if tensor.is_cpu and type(tensor) is Tensor:
            if not num_dispatch_modes():
                return cpu(tensor, *args)
            recorder = current_recorder()
            if recorder is not None:
                recorder.hold((tensor, *args))
                return cpu(tensor, *args)
        return op(tensor, *args)

    return call


def run_kernel(name: str, kernel: _core.Kernel) -> None:
    """Run a native call on the CPU, or add it to the graph under capture."""
    recorder = current_recorder()
    if recorder is None:
        kernel.run()
    else:
        recorder.add_kernel(name, kernel)


def address(tensor: Tensor | None) -> int:
    """The address of a tensor's first element; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def require(condition: bool, message: str) -> None:
    """Raise InputError unless `condition`."""
    if not condition:
        raise InputError(message)


def check_logits(logits: Tensor, in_place: bool) -> None:
    """Raise InputError unless `logits` is [n, vocab] of a dtype in DTYPE_CODES, with a contiguous last dimension.
    `in_place`: the caller changes the logits, so the message must not advise a copy."""
    if logits.dtype in DTYPE_CODES and logits.dim() == 2 and (logits.stride(1) == 1 or logits.shape[1] <= 1):
        return
    require(logits.dtype in DTYPE_CODES, f"logits must be float32, float16 or bfloat16, not {logits.dtype}")
    require(logits.dim() == 2, f"logits must be [n, vocab], not {list(logits.shape)}; use view or unsqueeze")
    advice = ", since they are changed in place" if in_place else "; pass logits.contiguous()"
    raise InputError(f"the last dimension of logits must be contiguous{advice}")


def native_logits(logits: Tensor) -> tuple[int, int, int, int, int]:
    """A kernel's arguments for logits: address, dtype number, rows, columns, and row stride in elements."""
    return (
        logits.data_ptr(),
        DTYPE_CODES[logits.dtype],
        logits.shape[0],
        logits.shape[1],
        logits.stride(0),
    )


def check_vector(name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], size: int, like: Tensor) -> None:
    """Raise InputError unless `tensor` is a contiguous vector of `size` elements, of one of `dtypes`, on the device of
    `like`."""
    fits = tensor.dtype in dtypes and tensor.dim() == 1 and tensor.shape[0] == size
    if fits and tensor.device == like.device:
        if size <= 1 or tensor.stride(0) == 1:
            return
        raise InputError(f"{name} must be contiguous; pass {name}.contiguous()")
    wanted = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
    raise InputError(
        f"{name} must be [{size}] {wanted} on {like.device}; "
        f"got {list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"
    )


def has_cuda_kernels() -> bool:
    """Whether this build contains the CUDA kernels."""
    return bool(_core.cuda_architectures())


def require_cuda_kernels() -> None:
    """Raise InterfaceError in a build without CUDA kernels."""
    if not has_cuda_kernels():
        raise InterfaceError(
            "this weft was built without CUDA kernels; put nvcc on PATH (or set CUDACXX) and rebuild with "
            "`pip install . --config-settings=cmake.define.WEFT_CUDA=ON`"
        )


def check_cuda(status: str | None) -> None:
    """Raise DriverError if `status` is the message of a failed launch. None means success."""
    if status is not None:
        raise DriverError(f"a CUDA kernel could not be launched: {status}")


def launch_cuda(
    launch: Callable[[Any, int], str | None], make_call: Callable[..., Any], tensor: Tensor, *args: Any
) -> None:
    """Launch the kernel of make_call(tensor, *args) on the device of `tensor`, on its current stream."""
    require_cuda_kernels()
    with device_of(tensor):
        check_cuda(launch(make_call(tensor, *args), stream_of(tensor)))


@cache
def multiprocessors(index: int) -> int:
    """The number of multiprocessors of CUDA device `index`."""
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def device_of(tensor: Tensor) -> torch.cuda.device:
    """A context in which the device of a CUDA tensor is the current one."""
    return torch.cuda.device(tensor.device)


def stream_of(tensor: Tensor) -> int:
    """The handle of the current stream on the device of a CUDA tensor."""
    return int(torch.cuda.current_stream(tensor.device).cuda_stream)


@cache
def triton_kernels(module: str) -> ModuleType:
    """Import the module `weft.ops.<module>`, which needs Triton. Raises InterfaceError if Triton is not installed."""
    # Imported on first use, because a machine without a GPU need not have Triton.
    try:
        return import_module(f"weft.ops.{module}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "triton":
            raise
        raise InterfaceError("models on CUDA need Triton; install it with `pip install triton`") from error
