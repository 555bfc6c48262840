"""How CUDA's kernels of few rows follow each other and read ahead: what a measurement decides, in one place.

`NAMED` lists what is worth measuring. A graph keeps the variant under which it was captured.
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
    """`outputs`, `inputs` and `split_wide` decide a product's last bits, all others nothing but the time."""

    chained: bool = True
    """Triton's kernels follow each other by programmatic dependent launch, where the device has it."""
    chains_all: bool = True
    """So do the kernels in CUDA C++."""
    early: bool = True
    """A product's first tiles of weights are on their way to shared memory before the kernel before it is done."""
    ahead: int = 512
    """Bytes of each row of weights, after those tiles, that are asked for before it is done; a multiple of 128."""
    bulk: bool = False
    """They are asked for in few large requests, not line by line."""
    early_keys: EarlyKeys = "read"
    """What attention does before then with the keys of earlier steps: nothing, bring its first tile to the L2 cache, or
    read it."""
    outputs: int = 64
    """Of a tile of a product."""
    inputs: int = 128
    """Of such a tile, of 16 bits."""
    stages: int = 3
    """Tiles that are on their way at once, or used."""
    split_wide: bool = False
    """Products whose outputs alone fill the GPU, gates and ups among them, are in two shares, too."""
    warps: int = 4
    """Of a program of a product."""


NAMED: dict[str, Variant] = {
    "default": Variant(),
    "unchained": Variant(chained=False, chains_all=False),
    "torch order": Variant(chains_all=False),
    "late weights": Variant(early=False),
    "late keys": Variant(early_keys="none"),
    "hinted keys": Variant(early_keys="hinted"),
    "late": Variant(chains_all=False, early=False, early_keys="none"),
    "nothing ahead": Variant(ahead=0),
    "1024 ahead": Variant(ahead=1024),
    "2048 ahead": Variant(ahead=2048),
    "bulk 512": Variant(bulk=True),
    "bulk 2048": Variant(bulk=True, ahead=2048),
    "2 stages": Variant(stages=2),
    "4 stages": Variant(stages=4),
    "wide in 2 shares": Variant(split_wide=True),
    "32 outputs": Variant(outputs=32),
    "128 outputs": Variant(outputs=128, stages=2),
    "256 inputs": Variant(inputs=256, stages=2),
    "8 warps": Variant(warps=8),
}
"""What may be measured against `default`; `WEFT_KERNELS` names the one that a process begins with."""

_chosen = NAMED["default"]


def chosen() -> Variant:
    """The variant of the kernels that are launched from now on."""
    return _chosen


def choose(variant: Variant | str) -> None:
    """Launch kernels in `variant`, or in the one of that name, from now on; `InputError` where there is none."""
    global _chosen
    if isinstance(variant, str):
        if variant not in NAMED:
            raise InputError(f"there are no kernels {variant!r}; there are {', '.join(map(repr, NAMED))}")
        variant = NAMED[variant]
    _core.chain_kernels(variant.chains_all)
    _chosen = variant


@contextmanager
def using(variant: Variant | str) -> Iterator[None]:
    """`choose` for a while."""
    before = _chosen
    choose(variant)
    try:
        yield
    finally:
        choose(before)


choose(kernel_variant() or "default")
