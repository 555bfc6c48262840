"""Checks that the extension was built with the CUDA sources, for weft's list of architectures. CI runs this in the job
with nvcc."""

from __future__ import annotations

from weft import _core

found = _core.cuda_architectures()
assert found, "nvcc is on PATH, but the extension was built without CUDA sources"
missing = [arch for arch in ("80", "90", "100") if f"{arch}-real" not in found.split()]
assert not missing, f"no kernels for {missing}: compiled for {found}"
print(f"kernels compiled for {found}")
