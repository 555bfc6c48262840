"""All sizes and training settings of weft-tiny."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ASSETS = ROOT / "python" / "weft" / "assets" / "weft-tiny"
BOS, EOS, PAD = 0, 1, 2
EXAMPLES = 240_000
LONGEST = 384  # tokens of an example


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes and training settings of a Llama. The defaults are the target's."""

    vocab_size: int = 1536
    hidden_size: int = 192
    intermediate_size: int = 512
    num_layers: int = 5
    num_heads: int = 6
    num_kv_heads: int = 3
    head_dim: int = 32
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    max_positions: int = 1024
    batch_size: int = 32
    peak_lr: float = 3e-3
    warmup: int = 200
    seed: int = 20


@dataclass(frozen=True)
class Unrolled:
    """The training settings of a head that is unrolled over several drafts, and its inner size. Its other sizes are the
    target's."""

    intermediate_size: int = 512
    unroll: int = 4
    decay: float = 0.8
    batch_size: int = 32
    peak_lr: float = 2e-3
    warmup: int = 100
    seed: int = 7


@dataclass(frozen=True)
class Eagle3(Unrolled):
    """The EAGLE3 head."""

    draft_vocab_size: int = 704
    aux_layers: tuple[int, int, int] = (1, 3, 4)


TARGET = LlamaConfig()
DRAFT = LlamaConfig(hidden_size=128, intermediate_size=384, num_layers=2, num_heads=4, num_kv_heads=2, seed=9)
EAGLE3 = Eagle3()
MTP = Unrolled()


def lines(name: str) -> list[str]:
    """Return the lines of a text file in this folder."""
    return (HERE / name).read_text().splitlines()


def load_module(name: str) -> ModuleType:
    """Load a module of `weft.tiny`, without weft's `__init__` if weft's extension is not built."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = ModuleType("weft")
        package.__path__ = [str(ROOT / "python" / "weft")]
        sys.modules["weft"] = package
    return importlib.import_module(name)


def load_records() -> ModuleType:
    """Load `weft.tiny.records` by `load_module`."""
    return load_module("weft.tiny.records")
