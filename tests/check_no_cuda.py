"""Run by `make no-cuda`: the extension built without nvcc imports, and its CUDA kernels are named errors."""

from __future__ import annotations

import weft
from weft import _core

assert not _core.cuda_architectures(), "this build was to have no CUDA sources"
print(f"weft {weft.__version__}: built without CUDA")
