"""Run by CI where nvcc is: the installed extension holds kernels for every architecture that weft names."""

from __future__ import annotations

import subprocess

from weft import _core

assert _core.built_with_cuda(), "nvcc is on PATH, but the extension was built without CUDA sources"
listing = subprocess.run(
    ["cuobjdump", "--list-elf", _core.__file__], check=True, capture_output=True, text=True
).stdout
missing = [arch for arch in ("sm_80", "sm_90", "sm_100") if arch not in listing]
assert not missing, f"no kernels for {missing} in {_core.__file__}:\n{listing}"
print("kernels for sm_80, sm_90 and sm_100")
