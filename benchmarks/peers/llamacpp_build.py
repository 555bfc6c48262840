"""Builds llama.cpp's programs for this machine, from the source in the sdist of llama-cpp-python."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path
from shutil import which

SOURCE = "llama-cpp-python==0.3.36"
PROGRAMS = ("llama-server", "llama-bench", "llama-quantize")
FEATURES = {
    "avx2": ("AVX2", "AVX", "SSE42"),
    "fma": ("FMA",),
    "f16c": ("F16C",),
    "bmi2": ("BMI2",),
    "avx512f": ("AVX512",),
    "avx512_vbmi": ("AVX512_VBMI",),
    "avx512_vnni": ("AVX512_VNNI",),
    "avx512_bf16": ("AVX512_BF16",),
}
"""The options of ggml for flags in /proc/cpuinfo. They are named one by one: GGML_NATIVE makes GCC 12 drop stores that
AMX needs, and programs that die of an illegal instruction."""


def build_llamacpp(folder: Path) -> None:
    """Build the programs in `folder`/bin, unless they are there: some 10 minutes on two cores. Needs network, cmake and
    a C++ compiler. Raises `CalledProcessError` if a command fails."""
    binaries = folder / "bin"
    if all((binaries / program).exists() for program in PROGRAMS):
        return
    folder.mkdir(parents=True, exist_ok=True)
    source = _source(folder)
    options = _options()
    cmake = which("cmake") or str(Path(sys.executable).parent / "cmake")
    _run(
        *(
            cmake,
            "-S",
            str(source),
            "-B",
            str(folder),
            "-DCMAKE_BUILD_TYPE=Release",
            "-DBUILD_SHARED_LIBS=OFF",
        ),
        *("-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"),
        *("-DLLAMA_BUILD_WEBUI=OFF", "-DGGML_NATIVE=OFF", *(f"-DGGML_{option}=ON" for option in options)),
    )
    _run(cmake, "--build", str(folder), "--parallel", "2", "--target", *PROGRAMS)
    (binaries / "features").write_text(f"{SOURCE}, {' '.join(options)}\n")


def _source(folder: Path) -> Path:
    """Download the sdist and unpack llama.cpp from it."""
    _run(
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        ":all:",
        "--dest",
        str(folder),
        SOURCE,
    )
    (archive,) = folder.glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"


def _options() -> list[str]:
    """The options of ggml that this processor can run."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])
    return [option for flag, options in FEATURES.items() if flag in flags for option in options]


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
