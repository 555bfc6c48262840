"""Records the kernels that Triton would launch, without a GPU: operations run on fake CUDA tensors. Also compiles
these kernels."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

DTYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
}
OPTIONS = ("num_warps", "num_stages", "launch_pdl", "enable_fp_fusion")


@dataclass(frozen=True)
class Code:
    """A compiled kernel: registers per thread, bytes of stack per thread and of shared memory, and its instructions."""

    registers: int
    stack: int
    shared: int
    instructions: str

    @property
    def spills(self) -> int:
        """The number of instructions that use local memory."""
        return len(re.findall(r"\b(?:LDL|STL)\b", self.instructions))


@dataclass(frozen=True)
class Launch:
    """A kernel with the arguments of one launch."""

    kernel: Any
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]
    grid: tuple[int, ...]

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)

    def compile(self, capability: int) -> Code:
        """Compile the kernel for a GPU of this compute capability."""
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        signature, constants, attributes = {}, {}, {}
        for number, parameter in enumerate(self.kernel.params):
            value = self.arguments[parameter.name]
            kind, is_constant, is_aligned = _specialized(parameter, value)
            signature[parameter.name] = "constexpr" if is_constant else kind
            if is_constant:
                constants[(number,)] = value
            elif is_aligned:
                attributes[(number,)] = [["tt.divisibility", 16]]
        compiled = triton.compile(
            ASTSource(self.kernel, signature, constants, attributes),
            target=GPUTarget("cuda", capability, 32),
            options=dict(self.options),
        )
        return _code(compiled)


def _specialized(parameter: Any, value: Any) -> tuple[str, bool, bool]:
    """Specialize an argument as Triton does. Returns its type, whether it is a constant, and whether it is known to
    be a multiple of 16."""
    if parameter.is_constexpr or value is None:
        return "", True, False
    if isinstance(value, Tensor):
        aligned = not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment)
        return f"*{DTYPES[value.dtype]}", False, aligned
    if isinstance(value, float):
        return "fp32", False, False
    if parameter.do_not_specialize:
        return "i32", False, False
    return "i32", value == 1, value % 16 == 0


def _code(compiled: Any) -> Code:
    import triton

    tool = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", "cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()

        def dumped(flag: str) -> str:
            return subprocess.run([tool, flag, file.name], capture_output=True, text=True, check=True).stdout

        usage, instructions = dumped("-res-usage"), dumped("-sass")
    registers, stack = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK"))  # type: ignore[index]
    return Code(registers, stack, compiled.metadata.shared, instructions)


@contextmanager
def fake_cuda(run: Callable[..., Any], capability: tuple[int, int] = (9, 0)) -> Iterator[None]:
    """Let tensors be fake tensors on a CUDA device of this compute capability. If Triton launches a kernel on them,
    `run` is called in place of `JITFunction.run`."""
    import triton

    from support.launch_check import cuda_device_guard
    from weft.ops import triton_launch

    stream = SimpleNamespace(cuda_stream=0)
    fakes: dict[str, Callable[..., Any]] = {
        "get_device_capability": lambda device=None: capability,
        "current_stream": lambda device=None: stream,
        "is_current_stream_capturing": lambda: False,
        "device": lambda device: nullcontext(),
    }
    triton_launch._can_chain.cache_clear()
    try:
        with (
            patch.object(triton.runtime.JITFunction, "run", run),
            patch.multiple(torch.cuda, **fakes),
            patch.dict(triton_launch._counters, clear=True),
            cuda_device_guard(),
            FakeTensorMode(allow_non_fake_inputs=True),
            torch.inference_mode(),
        ):
            yield
    finally:
        triton_launch._can_chain.cache_clear()


@contextmanager
def launches(capability: tuple[int, int] = (9, 0)) -> Iterator[list[Launch]]:
    """Let tensors be fake tensors on a CUDA device of this compute capability. Yields a list that receives Triton's
    launches on them."""
    found: list[Launch] = []

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        names = [parameter.name for parameter in kernel.params]
        found.append(Launch(kernel, dict(zip(names, args, strict=False)) | kwargs, options, grid))

    with fake_cuda(run, capability):
        yield found
