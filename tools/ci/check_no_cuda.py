"""Checks a build without nvcc: that it can be imported, that its CUDA kernels raise a named error, and that it contains
its data files. `make no-cuda` runs this with the folder of the build."""

from __future__ import annotations

import sys
from pathlib import Path

# Remove the finder of the editable install, which would import another build.
sys.meta_path = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
folder = Path(sys.argv[1]).resolve()
sys.path.insert(0, str(folder))

import weft  # noqa: E402
from weft import _core  # noqa: E402
from weft.config import package_model_path  # noqa: E402
from weft.errors import InterfaceError  # noqa: E402
from weft.ops.library import require_cuda_kernels  # noqa: E402

assert Path(weft.__file__).is_relative_to(folder), weft.__file__
assert package_model_path().is_dir(), "the model inside the package is to be installed"
assert _core.cuda_architectures() == "", "this build was to have no CUDA sources"
try:
    require_cuda_kernels()
except InterfaceError as error:
    print(f"weft {weft.__version__}, built without CUDA: {error}")
else:
    raise SystemExit("the CUDA kernels of a build without CUDA are to be a named error")
