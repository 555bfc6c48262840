"""Measures matrix products with few rows at the shape of Llama 3.1 8B, in graphs, with more weights than fit in the
L2 cache: weft's kernel against cuBLAS, and a chain of layers' four products with each variant of the kernel. Without
a GPU, only lists the variants."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from answers import ON_GPU, Answers, answers, left
from torch import Tensor

from weft.ops import linear_triton
from weft.ops.activation import SWIGLU, Epilogue
from weft.ops.variants import NAMED, using


@dataclass(frozen=True)
class Product:
    """A weight [outputs, inputs], and the operations that its kernel fuses."""

    outputs: int
    inputs: int
    normed: bool = False
    gated: bool = False

    @property
    def num_bytes(self) -> int:
        return 2 * self.outputs * self.inputs


HIDDEN, INNER, VOCAB = 4096, 14336, 128256
LAYER = {
    "qkv": Product(6144, HIDDEN, normed=True),
    "o": Product(HIDDEN, HIDDEN),
    "gate_up": Product(2 * INNER, HIDDEN, normed=True, gated=True),
    "down": Product(HIDDEN, INNER),
}
HEAD = Product(VOCAB, HIDDEN, normed=True)
PRODUCTS = {**LAYER, "head": HEAD}
LAYERS = 6  # 436 MB each
ROWS = (1, 4, 16)
CHAIN_ROWS = (1, 4)


@dataclass(frozen=True)
class Buffers:
    """The inputs and outputs of a layer's products, for a number of rows."""

    x: Tensor
    qkv: Tensor
    inner: Tensor
    logits: Tensor
    norm: Tensor

    @classmethod
    def allocate(cls, rows: int) -> Buffers:
        empty = partial(torch.empty, dtype=torch.bfloat16, device="cuda")
        return cls(
            x=empty(rows, HIDDEN),
            qkv=empty(rows, LAYER["qkv"].outputs),
            inner=empty(rows, INNER),
            logits=empty(rows, VOCAB),
            norm=torch.ones(HIDDEN, dtype=torch.bfloat16, device="cuda"),
        )

    def input(self, name: str) -> Tensor:
        """The input of a product."""
        return {"o": self.qkv[:, :HIDDEN], "down": self.inner}.get(name, self.x)


def product(name: str, x: Tensor, weight: Tensor, norm: Tensor, out: Tensor, residual: Tensor | None) -> None:
    of = PRODUCTS[name]
    epilogue = Epilogue.of(SWIGLU, gated=True) if of.gated else Epilogue()
    linear_triton.linear(x, weight, None, norm if of.normed else None, 1e-5, residual, epilogue, out)


def layer(buffers: Buffers, weights: dict[str, Tensor]) -> None:
    """Run a layer's four products. Each reads the output of an earlier one."""
    outs = {"qkv": buffers.qkv, "o": buffers.x, "gate_up": buffers.inner, "down": buffers.x}
    for name, out in outs.items():
        residual = buffers.x if out is buffers.x else None
        product(name, buffers.input(name), weights[name], buffers.norm, out, residual)


def all_layers(buffers: Buffers, layers: Sequence[dict[str, Tensor]]) -> None:
    for weights in layers:
        layer(buffers, weights)


def head(buffers: Buffers, weight: Tensor) -> None:
    product("head", buffers.x, weight, buffers.norm, buffers.logits, None)


def made(of: Product) -> Tensor:
    return torch.empty(of.outputs, of.inputs, dtype=torch.bfloat16, device="cuda")


def launch_all() -> None:
    """Launch every kernel of this file, on fake tensors, to fill a cache (`triton_cache.py`)."""
    weights = {name: made(of) for name, of in PRODUCTS.items()}
    for variant in NAMED:
        with using(variant):
            for rows in CHAIN_ROWS:
                layer(Buffers.allocate(rows), weights)
    for rows in ROWS:
        buffers = Buffers.allocate(rows)
        layer(buffers, weights)
        head(buffers, weights["head"])


class Measuring:
    """The weights of several layers on the GPU, and timing of graphs that read them."""

    def __init__(self) -> None:
        from weft.runtime import get

        self._runtime = get("cuda")
        self._stream: Any = self._runtime.stream()
        self.layers = [{name: self._weight(of) for name, of in LAYER.items()} for _ in range(LAYERS)]
        self.heads = [self._weight(HEAD) for _ in range(2)]
        self._runtime.publish()

    def _weight(self, of: Product) -> Tensor:
        return made(of).normal_(0, of.inputs**-0.5)

    def us(self, issue: Callable[[], object], repeat: int = 15) -> float:
        """Capture `issue`, and return the median time of a replay on the device, in microseconds."""
        self._runtime.publish()
        self._stream.launch(issue)
        self._stream.synchronize()
        with self._runtime.capture(self._stream) as graph:
            self._stream.launch(issue)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        times = []
        for _ in range(repeat):
            with torch.cuda.stream(self._stream.torch_stream):
                begin.record()
                graph.replay()
                end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3)
        graph.close()
        return float(median(times))

    def beside_cublas(self, rows: int) -> dict[str, Any]:
        """Return, for each product: the bandwidth of weft's kernel and of cuBLAS in TB/s, microseconds, and the
        error relative to float64."""
        buffers = Buffers.allocate(rows)
        for tensor in (buffers.x, buffers.qkv, buffers.inner):
            tensor.normal_()
        found = {}
        for name, of in PRODUCTS.items():
            weights = self.heads if name == "head" else [each[name] for each in self.layers]
            x = buffers.input(name)
            out = torch.empty(rows, of.outputs // 2 if of.gated else of.outputs, dtype=x.dtype, device="cuda")
            plain, whole = x.contiguous(), torch.empty(rows, of.outputs, dtype=x.dtype, device="cuda")

            def ours(name: str = name, x: Tensor = x, out: Tensor = out, weights: Any = weights) -> None:
                for weight in weights:
                    product(name, x, weight, buffers.norm, out, None)

            def theirs(plain: Tensor = plain, whole: Tensor = whole, weights: Any = weights) -> None:
                for weight in weights:
                    torch.mm(plain, weight.t(), out=whole)

            us, others = self.us(ours) / len(weights), self.us(theirs) / len(weights)
            found[name] = {"TB/s": of.num_bytes / us / 1e6, "cuBLAS": of.num_bytes / others / 1e6, "us": us}
            if name != "head":  # its float64 reference would take gigabytes
                found[name]["error"] = error_of(of, x, weights[-1], out)
        return found

    def chains(self, rows: int) -> dict[str, Any]:
        """Return the microseconds of a layer's products in a chain of layers for each variant, or its error."""
        buffers = Buffers.allocate(rows)
        for tensor in (buffers.x, buffers.qkv, buffers.inner):
            tensor.normal_()
        found: dict[str, Any] = {}
        for name in NAMED:
            if left() < 4:
                found[name] = "left out"
                continue
            try:
                with using(name):
                    us = self.us(partial(all_layers, buffers, self.layers)) / LAYERS
                found[name] = round(us, 1)
            except Exception as error:  # go on with the other variants
                found[name] = f"{type(error).__name__}: {str(error)[:50]}"
        num_bytes = sum(of.num_bytes for of in LAYER.values())
        best = min((us for us in found.values() if isinstance(us, float)), default=float("inf"))
        return {**found, "TB/s of the fastest": num_bytes / best / 1e6}


def error_of(of: Product, x: Tensor, weight: Tensor, out: Tensor) -> float:
    """Return the relative error against float64."""
    wide = x.double()
    if of.normed:
        wide = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)
    expected = wide @ weight.double().t()
    if of.gated:
        gate, up = expected.chunk(2, -1)
        expected = torch.nn.functional.silu(gate) * up
    return float((out.double() - expected).norm() / expected.norm())


def main(part: Answers) -> None:
    if not ON_GPU:
        part.ask("products", lambda: {"variants": list(NAMED)})
        return
    measuring = Measuring()
    for rows in ROWS if "chain" not in sys.argv else ():
        part.ask(f"products of {rows} rows", measuring.beside_cublas, rows, needs=6)
    for rows in CHAIN_ROWS:
        part.ask(f"chain of {rows} rows: us a layer", measuring.chains, rows, needs=6)


if __name__ == "__main__":
    with answers("products") as made_part:
        main(made_part)
