"""Variants of the CUDA kernels for few rows, which differ in chaining, prefetching and tiles. Benchmarks compare them.

`NAMED` lists the variants worth measuring. A graph keeps the variant with which it was captured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from weft import _core
from weft.config import kernel_variant
from weft.errors import InputError

EarlyKeys = Literal["none", "hinted", "read"]


@dataclass(frozen=True)
class Variant:
    """A variant. `outputs`, `inputs` and `split_wide` affect the last bits of a matmul; the other fields affect only
    its time."""

    chained: bool = True
    """Triton kernels use programmatic dependent launch if the device supports it."""
    chains_all: bool = True
    """Kernels in CUDA C++ use programmatic dependent launch, too."""
    early: bool = True
    """A matmul loads its first weight tiles into shared memory before the previous kernel ends."""
    prefetch_bytes: int = 512
    """A matmul prefetches this many bytes of each weight row after those tiles, before the previous kernel ends. A
    multiple of 128."""
    bulk: bool = False
    """A matmul prefetches these bytes in a few large requests instead of line by line."""
    early_keys: EarlyKeys = "read"
    """Whether attention touches keys of earlier steps before the previous kernel ends. It does not ("none"), prefetches
    their first tile to the L2 cache ("hinted"), or reads that tile ("read"). It only prefetches without `Rows.settled`
    and for large heads, and does neither with a window."""
    outputs: int = 64
    """The number of outputs in a matmul's tile."""
    inputs: int = 128
    """The number of inputs in a matmul's tile, for 16-bit weights."""
    stages: int = 3
    """The number of tiles in flight, including the one in use."""
    split_wide: bool = False
    """Matmuls with enough output tiles to fill the GPU, such as gate and up projections, also split their inputs into
    two shares."""
    warps: int = 4
    """The number of warps per program of a matmul."""


NAMED: dict[str, Variant] = {
    "default": Variant(),
    "unchained": Variant(chained=False, chains_all=False),
    "torch order": Variant(chains_all=False),
    "late weights": Variant(early=False),
    "late keys": Variant(early_keys="none"),
    "hinted keys": Variant(early_keys="hinted"),
    "late": Variant(chains_all=False, early=False, early_keys="none"),
    "nothing ahead": Variant(prefetch_bytes=0),
    "1024 ahead": Variant(prefetch_bytes=1024),
    "2048 ahead": Variant(prefetch_bytes=2048),
    "bulk 512": Variant(bulk=True),
    "bulk 2048": Variant(bulk=True, prefetch_bytes=2048),
    "2 stages": Variant(stages=2),
    "4 stages": Variant(stages=4),
    "wide in 2 shares": Variant(split_wide=True),
    "32 outputs": Variant(outputs=32),
    "128 outputs": Variant(outputs=128, stages=2),
    "256 inputs": Variant(inputs=256, stages=2),
    "8 warps": Variant(warps=8),
}
"""The variants by name. `WEFT_KERNELS` names the initial variant of a process."""

_chosen = NAMED["default"]


def chosen() -> Variant:
    """The variant that kernels are launched with now."""
    return _chosen


def choose(variant: Variant | str) -> None:
    """Launch kernels with `variant`, a variant or its name, from now on. Raises `InputError` for unknown names."""
    global _chosen
    if isinstance(variant, str):
        if variant not in NAMED:
            raise InputError(f"there are no kernels {variant!r}; there are {', '.join(map(repr, NAMED))}")
        variant = NAMED[variant]
    _core.chain_kernels(variant.chains_all)
    _chosen = variant


@contextmanager
def using(variant: Variant | str) -> Iterator[None]:
    """Context in which kernels are launched with `variant`."""
    before = _chosen
    choose(variant)
    try:
        yield
    finally:
        choose(before)


choose(kernel_variant() or "default")
