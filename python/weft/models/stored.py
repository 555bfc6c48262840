"""The tensors in a directory's safetensors files, or in its GGUF file: their headers, and their bytes by memory map.

Packing copies a tensor from the file's pages to its final layout, so no other copy is in memory. A thread asks the
system to read the tensors that follow, in the order in which the model takes them, so that reading and packing overlap.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from weft.core.files import inside, read_json
from weft.errors import ModelError
from weft.models.fields import Fields
from weft.models.gguf.names import named_entries
from weft.models.gguf.parts import first_part, read_model_header
from weft.models.quantized.method import Method
from weft.models.quantized.parse import METHODS, parse_quantization, read_model_config
from weft.runtime.host_memory import MAP_NORESERVE

INDEX, SINGLE, GGUF = "model.safetensors.index.json", "model.safetensors", "model.gguf"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}
"""The dtypes that weft reads, by their names in safetensors."""
ONLY_QUANTIZED = ("F8_E4M3", "F8_E8M0")
"""The dtypes of tensors that have a meaning only with others."""
AROUND = 1 << 16
"""The bytes that the system maps at once when a process touches a page of a file."""
BYTES_AHEAD = 256 << 20
"""The bytes that the system may read before they are taken."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: its dtype as safetensors or GGUF names it, its shape in numbers, and the place of its bytes
    in the file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def num_bytes(self) -> int:
        return self.end - self.begin


def stored_tensors(directory: Path) -> dict[str, Stored]:
    """The tensors of `model.safetensors`, of the files in its index, or of the GGUF file, by name. Reads only headers.
    Raises `ModelError` for files that are missing or damaged."""
    packed = gguf_file(directory)
    if packed is not None:
        return gguf_tensors(packed)
    index, single = directory / INDEX, directory / SINGLE
    if index.exists():
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict):
            raise ModelError(f"{index}: 'weight_map' is missing; it must map tensor names to files")
        files = {name: inside(directory, file, index) for name, file in places.items()}
        headers = {path: _header(path) for path in dict.fromkeys(files.values())}
        for name, path in files.items():
            if name not in headers[path]:
                raise ModelError(
                    f"{path}: tensor {name!r}, which the index places here, can't be read: the file does not have it; "
                    "get the model again"
                )
        return {name: headers[path][name] for name, path in files.items()}
    if single.exists():
        return _header(single)
    if any(directory.glob("*.bin")):
        raise ModelError(
            f"{directory}: has weights only as .bin, which weft does not read; convert to safetensors"
        )
    raise ModelError(f"{directory}: has neither {SINGLE} nor {INDEX}, nor a GGUF file")


def gguf_file(directory: Path) -> Path | None:
    """The GGUF file that holds a directory's weights, or their first part; None if they are in safetensors, or if there
    are none. Instead of the directory, the path may be the file itself. Raises `ModelError` if several files could hold
    the weights."""
    if directory.suffix == ".gguf" and directory.is_file():
        return directory
    if any((directory / name).exists() for name in (INDEX, SINGLE)):
        return None
    # Beside a model of text, a file of this name holds the encoder of its images.
    found = [path for path in sorted(directory.glob("*.gguf")) if not path.name.startswith("mmproj")]
    if len(found) > 1:
        first = first_part(found)
        if first is None:
            raise ModelError(f"{directory}: has {len(found)} GGUF files; give the path of one")
        # The files to which links lead may have other names, and other places.
        originals = [each.resolve() for each in found]
        are_together = len({each.parent for each in originals}) == 1
        return (first_part(originals) if are_together else None) or first
    return found[0].resolve() if found else None


def gguf_tensors(file: Path) -> dict[str, Stored]:
    """The tensors of a GGUF file, and of the other parts of its model, by their names in a checkpoint. Raises
    `ModelError`."""
    tensors: dict[str, Stored] = {}
    for path, name, kind, shape, begin, end in named_entries(read_model_header(file)):
        if name in tensors:
            raise ModelError(f"{path}: has two tensors in the place of {name!r}")
        tensors[name] = Stored(path, kind, shape, begin, end)
    return tensors


def count_parameters(directory: Path) -> int:
    """The number of parameters in a directory's weights. Reads only headers. Raises `ModelError`."""
    where = directory / "config.json"
    # A drafter's config may have no place for it.
    data = read_model_config(directory) if where.exists() else {}
    return parameters_of(
        stored_tensors(directory), parse_quantization(Fields(data, str(where)), tuple(METHODS))
    )


def parameters_of(tensors: Mapping[str, Stored], method: Method | None = None) -> int:
    """The number of parameters in tensors by name, which may be quantised with `method`."""
    count = Method().count if method is None else method.count
    return sum(count(name, tensor.shape) for name, tensor in tensors.items())


def _header(path: Path) -> dict[str, Stored]:
    """The tensors of a file by name."""
    try:
        with safe_open(str(path), framework="pt"):  # checks the header: all offsets are inside of the file
            pass
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such file, though the index names it") from None
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: can't be read as safetensors: {error}") from error
    header.pop("__metadata__", None)
    return {
        name: Stored(
            path,
            entry["dtype"],
            tuple(entry["shape"]),
            *(8 + size + offset for offset in entry["data_offsets"]),
        )
        for name, entry in header.items()
    }


def _forget(memory: mmap.mmap, begin: int, end: int, done: Callable[[], None] | None) -> None:
    """Let the process forget pages of a file, which otherwise count as its memory. A later access reads them again."""
    if hasattr(mmap, "MADV_DONTNEED"):
        # With the surroundings, which the system maps too when it reads a page.
        begin, end = begin // AROUND * AROUND, min(-(-end // AROUND) * AROUND, len(memory))
        memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)
    if done is not None:
        done()


class MappedFiles:
    """Reads `tensors` by memory map. They are CPU tensors in their stored dtypes, and views of the files' pages. Those
    that are stored in blocks are uint8 [..., bytes of a row]. The system reads tensors ahead in the `order` of their
    names. A context manager."""

    def __init__(self, tensors: Mapping[str, Stored], order: Sequence[str] = ()) -> None:
        self._tensors = tensors
        self._maps: dict[Path, mmap.mmap] = {}
        self._taken: set[str] = set()
        self._ahead: dict[str, int] = {}  # bytes of tensors that the system reads, and that are not taken yet
        self._has_room = threading.Condition()
        self._is_closed = False
        self._reader: threading.Thread | None = None
        if order and hasattr(os, "posix_fadvise"):
            self._reader = threading.Thread(
                target=self._read_ahead, args=(list(order),), name="weft-weights", daemon=True
            )

    def __enter__(self) -> MappedFiles:
        if self._reader is not None:
            self._reader.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._has_room:
            self._is_closed = True
            self._has_room.notify()
        if self._reader is not None:
            self._reader.join()
        self._maps.clear()  # a map lives as long as tensors that are views of it

    def take(self, name: str, done: Callable[[], None] | None = None) -> Tensor:
        """Tensor `name`. Calls `done` when its last view is gone. Raises `ModelError` if the system can't map the
        file."""
        stored = self._tensors[name]
        with self._has_room:
            self._taken.add(name)
            self._ahead.pop(name, None)
            self._has_room.notify()
        dtype, shape = DTYPES.get(stored.dtype), stored.shape
        if dtype is None:  # blocks
            dtype, shape = torch.uint8, (*shape[:-1], stored.num_bytes // prod(shape[:-1]))
        count = prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        memory = self._map(stored.path)
        part = memoryview(memory)[stored.begin : stored.end]
        tensor = torch.frombuffer(part, dtype=dtype, count=count).view(shape)
        # The tensor's memory refers to `part`, which ends with the last view of the tensor.
        weakref.finalize(part, _forget, memory, stored.begin, stored.end, done).atexit = False
        return tensor

    def _map(self, path: Path) -> mmap.mmap:
        if path not in self._maps:
            try:
                with path.open("rb") as file:
                    # Writable, because torch warns of memory that it can't write. Nothing writes it.
                    flags, access = mmap.MAP_PRIVATE | MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
                    self._maps[path] = mmap.mmap(file.fileno(), 0, flags=flags, prot=access)
            except (OSError, ValueError) as error:
                raise ModelError(f"{path}: can't be mapped into memory: {error}") from error
        return self._maps[path]

    def _read_ahead(self, order: Sequence[str]) -> None:
        """Ask the system to read the tensors in `order`, at most `BYTES_AHEAD` before they are taken."""
        files: dict[Path, int] = {}
        try:
            for name in order:
                stored = self._tensors[name]
                with self._has_room:
                    self._has_room.wait_for(
                        lambda: sum(self._ahead.values()) < BYTES_AHEAD or self._is_closed
                    )
                    if self._is_closed:
                        return
                    if name in self._taken:  # the model was faster
                        continue
                    self._ahead[name] = stored.num_bytes
                if stored.path not in files:
                    files[stored.path] = os.open(stored.path, os.O_RDONLY)
                os.posix_fadvise(files[stored.path], stored.begin, stored.num_bytes, os.POSIX_FADV_WILLNEED)
        except OSError:
            pass  # taking the tensor reports it
        finally:
            for file in files.values():
                os.close(file)
