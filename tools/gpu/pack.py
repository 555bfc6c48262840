"""Fill a folder with everything for the first minutes on a GPU machine (`make gpu-first`, docs/gpu-status.md):
wheels that fit together (`carry.py`), the tests, the parts with their expected tokens, a probe, and a Triton cache.

On the GPU machine, `bash .gpu/go.sh first` runs it. `--rehearsal` leaves out everything that needs building: wheels,
probe and cache. It is for a machine whose `--stack` has weft installed.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from carry import (  # noqa: E402 (from the same folder)
    IMPORTED,
    NEEDING_TORCH,
    ROOT,
    CarryError,
    absolute,
    add_options,
    carry,
    check_python,
    check_together,
    failed,
    show,
)

MOST_MIB = 44
"""The maximum size of the folder. 64 MiB can be transferred, and a checkout takes 20."""
TESTED = ("tests", "benchmarks", "pyproject.toml")
LEFT_OUT = ("benchmarks/results/", "benchmarks/peers/")
CACHED = {".cubin", ".json", ".so"}
"""Suffixes of the cache files that Triton needs to run a kernel without compiling it."""


def run(command: list[str], path: list[Path], folder: Path = HERE) -> None:
    """Run a command with PYTHONPATH `path`. Raises `CarryError` with its output if it fails."""
    if said := failed(command, ":".join(map(str, path)), folder):
        raise CarryError(f"{' '.join(command[:3])}: {said}")


def commit() -> str:
    """Return the commit, with a + if the working tree has changes."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def tested_files() -> list[str]:
    """Return the files of the tests, and the files of the checkout that they need."""
    command = ["git", "ls-files", "-z", *TESTED]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name for name in listed if name and not name.startswith(LEFT_OUT) and (ROOT / name).exists()]


def pack_cache(cache: Path, file: Path) -> None:
    """Pack the files of a Triton cache that a GPU machine needs. Group files contain absolute paths. Here only the
    file names are kept, and `go.py` makes them absolute again."""
    with tarfile.open(file, "w:xz", preset=6) as archive:
        for path in sorted(cache.rglob("*")):
            if path.suffix not in CACHED:
                continue
            data = path.read_bytes()
            if path.name.startswith("__grp__"):
                children = json.loads(data)["child_paths"]
                kept = {
                    name: Path(child).name for name, child in children.items() if Path(child).suffix in CACHED
                }
                data = json.dumps({"child_paths": kept}).encode()
            entry = tarfile.TarInfo(str(path.relative_to(cache)))
            entry.size, entry.mode = len(data), 0o755 if path.suffix == ".so" else 0o644
            archive.addfile(entry, io.BytesIO(data))


def pack(folder: Path, stack: str, rehearsal: bool, cache: Path) -> None:
    """Pack everything but the wheels. In a rehearsal, weft comes from `stack`, otherwise from the wheels."""
    parts, tests = HERE / "parts", ROOT / "tests"
    with tempfile.TemporaryDirectory() as work:
        site, reference, probe = (Path(work) / name for name in ("site", "reference.json", "probe"))
        if not rehearsal:
            check_together(folder, stack, (*IMPORTED, *NEEDING_TORCH), site)
        path = [] if rehearsal else [site]
        run([stack, str(parts / "tokens.py"), "reference", str(reference)], [*path, parts])
        if not rehearsal:
            compile_probe(probe)
            run([stack, str(HERE / "triton_cache.py"), str(cache)], [*path, tests, parts])
            pack_cache(cache, folder / "triton.tar.xz")
        with tarfile.open(folder / "kit.tar.gz", "w:gz") as archive:
            for name in tested_files():
                archive.add(ROOT / name, f"src/{name}")
            for script in sorted(parts.glob("*.py")):
                archive.add(script, f"parts/{script.name}")
            archive.add(reference, "parts/reference.json")
            if probe.exists():
                archive.add(probe, "probe")
    for name in ("go.sh", "go.py"):
        shutil.copy(HERE / name, folder)
    (folder / "COMMIT").write_text(f"{commit()}\n")


def compile_probe(probe: Path) -> None:
    command = ["nvcc", "-O2", "-std=c++17", "-arch=sm_90", str(HERE / "parts" / "probe.cu"), "-o", str(probe)]
    if said := failed(command):
        raise CarryError(f"the probe: {said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument(
        "--reuse", action="store_true", help="keep the wheels that the folder has, and the cache"
    )
    parser.add_argument(
        "--cache", type=absolute, default=ROOT / "build" / "gpu-triton", help="of Triton, a folder"
    )
    parser.add_argument("--rehearsal", action="store_true", help="no wheels, no probe and no Triton cache")
    options = parser.parse_args()
    if not options.stack:
        parser.error("--stack is needed: what compares tokens needs torch")
    if not options.rehearsal:
        check_python(parser)
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.reuse:
        shutil.rmtree(options.cache, ignore_errors=True)
    options.cache.mkdir(parents=True, exist_ok=True)
    try:
        if not options.rehearsal and not (options.reuse and list(options.out.glob("weft*.whl"))):
            carry(options.out, options.arch, options.stack)
        pack(options.out, str(options.stack), options.rehearsal, options.cache)
    except CarryError as error:
        sys.exit(str(error))
    if not options.rehearsal:
        show(options.out)
    size = sum(file.stat().st_size for file in options.out.iterdir() if file.is_file()) / 2**20
    print(
        f"{size:.1f} MiB in {options.out.name}, of at most {MOST_MIB}; there: bash {options.out.name}/go.sh first"
    )
    if size > MOST_MIB:
        sys.exit(f"{options.out.name} is too large to be carried")


if __name__ == "__main__":
    main()
