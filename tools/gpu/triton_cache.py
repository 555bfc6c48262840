"""Fill a Triton cache without a GPU. It gets weft's kernels and their launchers for compute capability 9.0, as
engines launch them, so that the first minutes on the GPU machine are not spent on compiling.

    triton_cache.py FOLDER [MODEL...]    models: 8b, tiny, draft, products; default all

The GPU machine needs the same wheel of Triton, the same version of Python, and the same kernels; everything else is
compiled there. The models run on fake tensors (`tests/support/kernels/launches.py`). PYTHONPATH must contain the
tests and `parts`. Needs a C compiler.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher, CudaUtils, ty_to_cpp
from triton.runtime import driver

from support.engine.fake_weights import EmptyWeights
from support.engine.nodes import IN_TRITON, no_offsets
from support.kernels.launches import fake_cuda
from weft.config import package_model_path
from weft.models import eagle3_head
from weft.models.architectures import read_config
from weft.models.base import PagedKV
from weft.models.config import ModelConfig
from weft.models.eagle3_config import Eagle3Config
from weft.models.eagle3_head import Eagle3Head
from weft.models.llama import Llama
from weft.models.mtp_layout import APART
from weft.models.mtp_module import MtpModule, MtpModules
from weft.ops.attention import Rows
from weft.ops.rows import take_rows
from weft.ops.variants import NAMED, using
from weft_bench.engine.models import SHAPES

PAGE = 16
TINY_LENGTHS = {torch.float32: (512, 4096, 1024, 256), torch.bfloat16: (512, 4096)}
BATCHES, WIDTHS, MOST_ROWS = (1, 3), (1, 4, 9), 16
DRIVER_CALLS = """
cuCtxGetCurrent cuCtxGetDevice cuCtxSetCurrent cuCtxSetLimit cuCtxGetLimit cuDeviceGet cuDeviceGetAttribute
cuDevicePrimaryCtxRetain cuFuncGetAttribute cuFuncSetAttribute cuFuncSetCacheConfig cuGetErrorString
cuModuleGetFunction cuModuleLoadData cuModuleUnload cuPointerGetAttribute cuStreamSynchronize cuLaunchKernelEx
cuLaunchKernel cuCtxPushCurrent_v2 cuOccupancyMaxActiveClusters cuTensorMapEncodeTiled cuGetErrorName cuInit
cuMemAlloc_v2 cuKernelGetFunction cuKernelGetAttribute
"""
"""The driver functions to which Triton's launchers link."""


def load_driver_stub(folder: Path) -> None:
    """Load a libcuda.so.1 whose functions fail, so that launchers can be linked and loaded without a driver."""
    source, library = folder / "stub.c", folder / "libcuda.so.1"
    source.write_text("\n".join(f"int {name}(void) {{ return 999; }}" for name in DRIVER_CALLS.split()))
    link = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source)]
    subprocess.run([os.environ.get("CC", "gcc"), *link], check=True)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    os.environ["TRITON_LIBCUDA_PATH"] = str(folder)  # not part of a cache key


class FakeDriver:
    """A Triton driver for a GPU that does not exist."""

    launcher_cls = CudaLauncher
    map_python_to_cpp_type = staticmethod(ty_to_cpp)
    utils = None

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None: ...

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)

    def is_active(self) -> bool:
        return True


class Compiling:
    """Compiles each kernel and its launcher in place of launching it. `run` is an argument for `fake_cuda`."""

    def __init__(self) -> None:
        self.found = self.made = 0
        self._run: Callable[..., Any] = triton.runtime.JITFunction.run
        self._seen: set[str] = set()
        triton.knobs.compilation.listener = self._count
        driver.set_active(FakeDriver())
        CudaUtils()

    def run(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        compiled = self._run(kernel, *args, grid=grid, warmup=True, **kwargs)
        if compiled.hash not in self._seen:
            self._seen.add(compiled.hash)
            CudaLauncher(compiled.src, compiled.metadata)

    def _count(self, *, cache_hit: bool, **_: object) -> None:
        self.found += cache_hit
        self.made += not cache_hit


class Following(TorchDispatchMode):
    """Runs the CUDA implementations of operations that use Triton, so that their kernels are launched."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = func.name().partition("::")
        launch = IN_TRITON.get(name.partition(".")[0]) if space == "weft" else None
        if launch is None:
            return func(*args, **(kwargs or {}))
        with self:
            launch(*args)
        return None


def ints(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, device="cuda")


def table(rows: int, pages: int) -> Tensor:
    return torch.zeros(rows, pages, dtype=torch.int32, device="cuda")


@dataclass(frozen=True)
class Models:
    """A target and the heads that draft for it."""

    target: Llama
    heads: Sequence[Any]

    @classmethod
    def made(
        cls, config: ModelConfig, aux_layers: tuple[int, ...], draft_vocab: int, has_mtp: bool
    ) -> Models:
        weights = EmptyWeights(config)
        target = Llama(config, weights)
        with patch.object(eagle3_head, "_take_d2t", no_offsets):
            sizes = aux_layers, config.hidden_size, draft_vocab
            heads: list[Any] = [Eagle3Head(Eagle3Config(config, *sizes), weights, target)]
        if has_mtp:
            rotary = config.rope.table(config.head_dim, config.max_position_embeddings, weights.device)
            make_layer = partial(Llama.make_layer, config, weights, "", config.num_layers, rotary)
            module = MtpModule(config, weights, APART, "", make_layer)
            heads.append(MtpModules(config, [module], APART, target))
        return cls(target, heads)

    def launch(self, lengths: Sequence[int], chunks: Sequence[int]) -> None:
        """Launch everything that engines with these maximum text lengths launch. Prompts are prefilled in chunks of
        `chunks` tokens."""
        for length in lengths:
            for head in self.heads or (None,):
                for batch in BATCHES:
                    for width in (width for width in WIDTHS if batch * width <= MOST_ROWS):
                        self.decode(head, batch, width, length)
                for chunk in chunks:
                    self._read(head, chunk, -(-length // PAGE))

    def decode(self, head: Any, batch: int, width: int, length: int) -> None:
        """Launch an iteration that verifies `width` tokens of each of `batch` texts, and drafts."""
        target, pages = self.target, -(-length // PAGE)
        config, hidden = target.config, target.config.hidden_size
        kv = PagedKV.for_model(target, 4 * pages + 1, PAGE)
        rows = Rows(table(batch, pages), ints(batch), width, settled=True)
        logits = ints(batch, width, config.vocab_size).to(config.dtype)
        aux_layers = head.aux_layers if head is not None else ()
        aux = ints(batch, width, len(aux_layers) * hidden).to(config.dtype)
        out = target.forward(ints(batch, width), kv, rows, aux_layers, aux if aux_layers else None)
        target.logits(out.last, logits)
        if head is None:
            return
        own = head.allocate_kv(4 * pages + 1, PAGE)
        x = head.forward(ints(batch, width), head.combine(aux), own, rows)
        last = take_rows(x, ints(batch), aux.new_empty(batch, hidden))
        head.logits(last, aux.new_empty(batch, head.draft_vocab_size))
        one = Rows(rows.page_table, rows.base, 1, ints(batch), 1, settled=True)
        head.forward(ints(batch, 1), last[:, None], own, one)

    def _read(self, head: Any, chunk: int, pages: int) -> None:
        """Launch the prefill of a chunk: from one text, and from texts of different lengths."""
        target = self.target
        config = target.config
        kv = PagedKV.for_model(target, 4 * pages + 1, PAGE)
        for starts in (None, ints(2)):
            rows = Rows(table(1, pages), ints(1), chunk, starts=starts)
            aux_layers = head.aux_layers if head is not None else ()
            aux = ints(chunk, len(aux_layers) * config.hidden_size).to(config.dtype)
            out = target.forward(ints(chunk), kv, rows, aux_layers, aux if aux_layers else None)
            target.logits(out.last[:1])
            if head is not None:
                head.forward(ints(chunk), head.combine(aux), head.allocate_kv(4 * pages + 1, PAGE), rows)


def launch_8b() -> None:
    """Launch Llama 3.1 8B and its EAGLE3 head, as in `parts/step.py`."""
    shape = SHAPES["llama-8b-eagle3"]
    config = shape.config(torch.bfloat16, shape.vocab)
    models = Models.made(config, (2, 16, 29), shape.draft_vocab or shape.vocab, has_mtp=False)
    models.launch((768, 384), (8, 512))
    for variant in NAMED:
        with using(variant):
            models.decode(None, 1, 1, 768)


def launch_tiny() -> None:
    """Launch weft-tiny and its heads, as in `parts/tokens.py` and the tests."""
    target = read_config(package_model_path())[1]
    for dtype, lengths in TINY_LENGTHS.items():
        models = Models.made(replace(target, dtype=dtype), (1, 3, 4), 704, has_mtp=True)
        models.launch(lengths, (8, 64))


def launch_draft() -> None:
    """Launch weft-tiny's draft model."""
    config = read_config(package_model_path() / "draft")[1]
    for dtype, lengths in TINY_LENGTHS.items():
        chosen = replace(config, dtype=dtype)
        Models(Llama(chosen, EmptyWeights(chosen)), ()).launch(lengths, (8, 64))


def launch_products() -> None:
    """Launch the variants of `parts/products.py`."""
    import products

    products.launch_all()


RUN = {"8b": launch_8b, "tiny": launch_tiny, "draft": launch_draft, "products": launch_products}


def main(folder: Path, names: Sequence[str]) -> None:
    os.environ["TRITON_CACHE_DIR"] = str(folder.absolute())
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as stubs:
        load_driver_stub(Path(stubs))
        compiling = Compiling()

        def run(kernel: Any, *args: Any, **kwargs: Any) -> None:
            compiling.run(kernel, *args, **kwargs)

        def address(tensor: FakeTensor) -> int:
            return (1 << 30) + int(tensor.storage_offset()) * tensor.element_size()

        for name in names or RUN:
            with patch.object(FakeTensor, "data_ptr", address), fake_cuda(run), Following():
                RUN[name]()
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(
        f"{compiling.found + compiling.made} Triton kernels, {compiling.made} of them compiled in "
        f"{time.perf_counter() - begin:.0f} s; {size / 2**20:.1f} MiB"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
