"""Fill a folder with weft's wheel and the wheels that it needs, for a GPU machine without network (`make
gpu-carry`).

`machine.txt` lists the packages of that machine, which has Python 3.12 on Linux (x86-64). Run this with Python 3.12
on a machine that has network and nvcc, because weft's wheel is built for that Python. At the end, all modules are
imported from the wheels. `--stack` names a Python 3.12 with the packages of `machine.txt`, as on the GPU machine.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = "3.12"
ALONE = ("xgrammar",)
"""Packages that need torch. They are downloaded without dependencies, since torch is on the machine; their other
requirements are downloaded separately."""
TESTING = ("pytest", "pytest-timeout", "pytest-xdist")
GLIBC = (17, 24, 27, 28, 31, 34, 35)
PLATFORMS = ("manylinux2014_x86_64", "manylinux1_x86_64", *(f"manylinux_2_{n}_x86_64" for n in GLIBC))

IMPORTED = (
    "pydantic",
    "jsonschema",
    "llguidance",
    "wasmtime",
    "tvm_ffi",
    "pytest",
    "pytest_timeout",
    "xdist",
)
NEEDING_TORCH = ("xgrammar", "weft")
IMPORT = """
import importlib, sys
site = sys.argv[1]
sys.path.insert(0, site)
for name in sys.argv[2:]:
    file = importlib.import_module(name).__file__
    assert file.startswith(site), f"{name} comes from {file}"
if "weft" in sys.argv:
    from weft import LLM
"""


class CarryError(Exception):
    """Wheels can't be downloaded or built, or do not fit together."""


def name_of(requirement: str) -> str:
    """Return the normalized name of the package in a requirement."""
    found = re.match(r"[\w.-]+", requirement.strip())
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def on_machine() -> frozenset[str]:
    """Return the packages of `machine.txt`."""
    lines = (Path(__file__).parent / "machine.txt").read_text().splitlines()
    return frozenset(name_of(line) for line in lines if line and not line.startswith("#"))


def needs_of_weft() -> list[str]:
    """Return the requirements of `pyproject.toml` that the machine lacks, and those of the tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*lacking(project["dependencies"]), *TESTING]


def lacking(requirements: Iterable[str]) -> list[str]:
    """Return the requirements whose packages the machine does not have."""
    there = on_machine()
    return [requirement for requirement in requirements if name_of(requirement) not in there]


def needs_of(wheel: Path) -> list[str]:
    """Return the requirements of a wheel, without extras."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    found = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    return [requirement for requirement in found if not re.search(r"extra\s*==", requirement)]


def fetch(folder: Path, requirements: Sequence[str], constraints: Path, options: Sequence[str] = ()) -> None:
    """Download wheels that fulfil `requirements` on the machine, in the versions that weft is tested with if there
    are wheels of them. `options` are pip's. Raises `CarryError` with pip's output."""
    alone = [requirement for requirement in requirements if name_of(requirement) in ALONE]
    for requirement in alone:
        download(folder, [requirement], constraints, ["--no-deps", *options])
    wheels = [
        wheel for name in map(name_of, alone) for wheel in folder.glob(f"{name.replace('-', '_')}-*.whl")
    ]
    rest = [requirement for requirement in requirements if requirement not in alone]
    needed = [need for wheel in wheels for need in lacking(needs_of(wheel))]
    download(folder, [*rest, *needed], constraints, options)


def download(folder: Path, requirements: list[str], constraints: Path, options: Sequence[str]) -> None:
    """Download wheels that fit together. If no wheels for the machine satisfy the constraints, they are ignored."""
    command = download_command(requirements, folder, options)
    if said := failed([*command, "-c", str(constraints)]):
        print(f"{' '.join(map(name_of, requirements))}: other versions than those tested, since:\n{said}")
        if said := failed(command):
            raise CarryError(said)


def download_command(requirements: list[str], folder: Path, options: Sequence[str] = ()) -> list[str]:
    """Return the command that downloads wheels for the machine."""
    platforms = [option for name in PLATFORMS for option in ("--platform", name)]
    target = ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp", *platforms]
    return [*pip(), "download", "-q", *target, "-d", str(folder), *options, *requirements]


def build_command(architecture: str, folder: Path) -> list[str]:
    """Return the command that builds weft's wheel with CUDA kernels for one architecture."""
    kernels = f"cmake.define.WEFT_CUDA_ARCHITECTURES={architecture}-real"
    options = ["-C", "cmake.define.WEFT_CUDA=ON", "-C", kernels, "-C", "build-dir=build/gpu-carry"]
    return [*pip(), "wheel", "-q", "--no-deps", *options, "-w", str(folder), str(ROOT)]


def install_command(python: str, folder: Path, site: Path) -> list[str]:
    """Return the command that unpacks all wheels of a folder into `site`, as on the machine."""
    options = ["-q", "--no-index", "--no-deps", "--no-compile", "--target", str(site)]
    return [*pip(python), "install", *options, *map(str, sorted(folder.glob("*.whl")))]


def check_together(folder: Path, python: str, modules: Sequence[str], site: Path | None = None) -> None:
    """Import modules with `python`, from the wheels and then from its own packages. Raises `CarryError` if a module
    is missing, does not come from the wheels, or refuses the version of another. The wheels stay unpacked in `site`."""
    with tempfile.TemporaryDirectory() as own:
        to = site or Path(own)
        importing = [python, "-I", "-c", IMPORT, str(to), *modules]
        said = failed(install_command(python, folder, to)) or failed(importing)
        if not said and "weft" in modules:
            said = failed([*pip(python), "check"], str(to))
        if said:
            raise CarryError(f"the wheels of {folder.name} don't go together:\n{said}")


def pip(python: str = sys.executable) -> list[str]:
    return [python, "-m", "pip", "--disable-pip-version-check"]


def failed(command: list[str], path: str | None = None, folder: Path | None = None) -> str:
    """Run a command in `folder` with PYTHONPATH `path`. Returns the end of its output if it fails, else ""."""
    environment = os.environ | ({"PYTHONPATH": path} if path else {})
    run = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    said = [line for line in (run.stdout + run.stderr).splitlines() if "Location 'file:" not in line]
    return "\n".join([*said[-20:], f"exit status {run.returncode}"]) if run.returncode else ""


def carry(folder: Path, architecture: str, stack: Path | None) -> None:
    """Fill the folder. Raises `CarryError`."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    fetch(folder, needs_of_weft(), ROOT / "constraints.txt")
    check_together(folder, str(stack or sys.executable), IMPORTED)
    if said := failed(build_command(architecture, folder)):
        raise CarryError(said)
    if stack:
        check_together(folder, str(stack), (*IMPORTED, *NEEDING_TORCH))
    else:
        print(f"not imported, without a --stack that has torch: {', '.join(NEEDING_TORCH)}")


def absolute(path: str) -> Path:
    """Make a path absolute without following links, because an environment's Python is a link."""
    return Path(path).absolute()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `carry` to a parser."""
    parser.add_argument("--arch", default="90", help="of the GPU: 80, 90 or 100")
    parser.add_argument("--out", type=absolute, default=ROOT / ".gpu")
    parser.add_argument("--stack", type=absolute, help=f"a Python {PYTHON} with the packages of machine.txt")


def check_python(parser: argparse.ArgumentParser) -> None:
    if ".".join(map(str, sys.version_info[:2])) != PYTHON:
        parser.error(f"this is Python {sys.version.split()[0]}; weft's wheel needs {PYTHON} (CARRY_PYTHON=…)")


def show(folder: Path) -> None:
    """Print the wheels and their sizes."""
    wheels = sorted(folder.glob("*.whl"))
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 2**20:7.1f} MiB  {wheel.name}")
    print(f"{sum(wheel.stat().st_size for wheel in wheels) / 2**20:7.1f} MiB in {len(wheels)} wheels")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    options = parser.parse_args()
    check_python(parser)
    try:
        carry(options.out, options.arch, options.stack)
    except CarryError as error:
        sys.exit(str(error))
    show(options.out)


if __name__ == "__main__":
    main()
