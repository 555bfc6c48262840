"""The tensors of a checkpoint, which a model takes by name and shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from weft.models import checkpoint_errors as errors
from weft.models.config import ModelConfig
from weft.models.gguf.names import QUANTIZED
from weft.models.matrices import Matrices
from weft.models.progress import LoadProgress
from weft.models.quantized.method import WEIGHT, Blocks, Floats
from weft.models.stored import (
    DTYPES,
    ONLY_QUANTIZED,
    MappedFiles,
    Stored,
    gguf_file,
    parameters_of,
    stored_tensors,
)
from weft.ops.formats import Format
from weft.ops.huge_pages import converted
from weft.ops.quantized import Matrix, Quantized

META = torch.device("meta")
_IGNORABLE = ("rotary_emb.inv_freq",)
_HALVES = (torch.float16, torch.bfloat16)


class Checkpoint:
    """The tensors of a directory's `model.safetensors`, of the shards in its index, or of its GGUF file. A context
    manager.

    The methods `take...` return tensors by name; `finish` raises if some were never taken. `like` is a checkpoint of
    the same model that was taken before: its order is the one in which the system reads the files. `progress` is
    advanced by the bytes of each tensor.

    On the device "meta", all but `take_raw` and `take_small` read only headers, and return tensors without contents.
    These members then describe the model before it is loaded:

    taken: the names of tensors, in order.
    num_bytes: the memory that they will need on a device.
    matrix_dtypes, matrix_formats: the dtypes of matrices there, and the formats of quantised ones.
    num_widened: the number of quantised matrices that become numbers, because no format fits them, or because their
        inputs must be in order.
    """

    def __init__(
        self,
        directory: Path,
        config: ModelConfig,
        device: torch.device,
        like: Checkpoint | None = None,
        progress: LoadProgress | None = None,
    ) -> None:
        stored = like._stored if like is not None else stored_tensors(directory)
        self._begin(gguf_file(directory) or directory, config, device, stored)
        self._files = MappedFiles(stored, like.taken if like is not None else ())
        self._progress = progress

    def _begin(
        self, directory: Path, config: ModelConfig, device: torch.device, stored: Mapping[str, Stored]
    ) -> None:
        self.directory = directory
        self.config = config
        self.device = device
        self.taken: list[str] = []
        self.num_bytes = 0
        self.matrix_dtypes: set[torch.dtype] = set()
        self.matrix_formats: set[Format] = set()
        self.num_widened = 0
        self._stored = stored
        self._left = set(stored)

    def __enter__(self) -> Checkpoint:
        self._files.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._files.__exit__()

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    @property
    def stored_bytes(self) -> int:
        """The bytes in the files of the tensors that were taken."""
        return sum(self._stored[name].num_bytes for name in self.taken)

    @property
    def num_parameters(self) -> int:
        """The number of parameters in the tensors that were taken."""
        return parameters_of({name: self._stored[name] for name in self.taken}, self.config.quantization)

    @property
    def num_files(self) -> int:
        """The number of files that hold the tensors that were taken."""
        return len({self._stored[name].path for name in self.taken})

    def take_raw(self, name: str, *shape: int) -> Tensor:
        """Tensor `name` in its stored dtype, on the CPU: a view of the file's pages. Raises `ModelError` if it is
        missing or has another shape."""
        self._check(name, shape)
        return self._read(name)

    def take(self, name: str, *shape: int) -> Tensor:
        """Tensor `name`, rounded to the dtype of the weights, then in the model's dtype, on its device."""
        tensor = self._numbers(name, *shape)
        # The first conversion rounds as on CUDA, where this tensor too has the weights' dtype.
        return self._copied(tensor.to(self.config.weight_dtype or tensor.dtype), self.config.dtype, tensor)

    def take_float(self, name: str, *shape: int) -> Tensor:
        """Tensor `name` in float32, not rounded, on the model's device."""
        tensor = self._numbers(name, *shape)
        return self._copied(tensor, torch.float32, tensor)

    def _copied(self, tensor: Tensor, dtype: torch.dtype, stored: Tensor) -> Tensor:
        """Convert a tensor, and move it to the model's device. The result shares no memory with `stored`."""
        result = tensor.to(self.device, dtype)
        self.num_bytes += result.numel() * result.element_size()
        return result.clone() if result is stored else result

    def take_matrix(self, name: str, *shape: int) -> Matrix:
        """Tensor `name` as it is quantised, or in the dtype of the weights, on the model's device. On the CPU it may be
        a view of the file's pages."""
        method = self.config.quantization
        if method is not None and method.holds(self, name):
            return self._quantized_matrix(method.take(self, name, *shape))
        return self._dense_matrix(name, *shape)

    def take_dense(self, name: str, *shape: int) -> Tensor:
        """Tensor `name` as `take_matrix` returns it, but a quantised one is dequantised: on the CPU to the dtype of its
        factors, on CUDA to the model's dtype."""
        method = self.config.quantization
        if method is not None and method.holds(self, name):
            stored = method.take(self, name, *shape)
            return self._as_numbers(stored, self._weight_dtype(stored.dtype))
        return self._dense_matrix(name, *shape)

    def take_in_order(self, names: Sequence[str], *shape: int) -> Matrices:
        """The matrices `names`, each as `take_matrix` returns it when it is read, but with its inputs in order. If the
        inputs of one of them are not in the order of their groups, all are dequantised."""
        method = self.config.quantization
        held = [] if method is None else [name for name in names if method.holds(self, name)]
        is_dense = method is not None and any(method.is_ordered(self, name) for name in held)
        if is_dense and not self.config.dequantizes:
            self.num_widened += len(held)
        take = self.take_dense if is_dense else self.take_matrix
        return Matrices(len(names), lambda index: take(names[index], *shape))

    def take_matrices(self, name: str, *shape: int) -> Matrices:
        """The matrices of tensor `name` [E, out, in], as `take_matrix` returns one. Each is converted when it is read,
        and stays in memory only as long as it is used."""
        method = self.config.quantization
        if method is not None and method.holds(self, name):
            parts = method.take_each(self, name, *shape)
            return Matrices(len(parts), lambda index: self._quantized_matrix(parts[index]))
        tensor = self._numbers(name, *shape)
        dtype = self._dense_dtype(tensor.dtype)
        self._note_matrix(tensor.numel(), dtype)
        return Matrices(len(tensor), lambda index: self._on_device(tensor[index], dtype))

    def _dense_matrix(self, name: str, *shape: int) -> Tensor:
        """A matrix that is not quantised, in the dtype of the weights, on the model's device."""
        tensor = self._numbers(name, *shape)
        dtype = self._dense_dtype(tensor.dtype)
        self._note_matrix(tensor.numel(), dtype)
        return self._on_device(tensor, dtype)

    def _quantized_matrix(self, stored: Blocks | Floats) -> Matrix:
        """A quantised matrix on the model's device. It is dequantised if that is wanted, or if no format fits it."""
        dequantizes = self.config.dequantizes
        if isinstance(stored, Floats):
            self.num_widened += not dequantizes
            return self._as_numbers(stored, self._weight_dtype(stored.dtype))
        if dequantizes:
            return self._as_numbers(stored, self._dequantized_dtype)
        return self._as_blocks(stored)

    def _as_blocks(self, stored: Blocks) -> Quantized:
        """A quantised matrix as it is, on the model's device."""
        (num_outputs, num_inputs), block = stored.shape, stored.format.block
        sizes = num_outputs, -(-num_inputs // block.inputs) * block.bytes
        self.matrix_formats.add(stored.format)
        self.num_bytes += prod(sizes)
        if self.device.type == "meta":
            rows = torch.empty(sizes, dtype=torch.uint8, device=META)
        else:
            rows = stored.read().to(self.device)
        return Quantized(rows, stored.format, num_inputs, stored.order)

    def _as_numbers(self, stored: Blocks | Floats, dtype: torch.dtype) -> Tensor:
        """The numbers of a quantised matrix in `dtype`, on the model's device."""
        self._note_matrix(prod(stored.shape), dtype)
        if self.device.type == "meta":
            return torch.empty(stored.shape, dtype=dtype, device=META)
        if isinstance(stored, Floats):
            return stored.read(dtype).to(self.device)
        matrix = Quantized(stored.read(), stored.format, stored.shape[1], stored.order)
        return matrix.dequantized(dtype).to(self.device)

    @property
    def _dequantized_dtype(self) -> torch.dtype:
        return self.config.weight_dtype or self.config.dtype

    def _dense_dtype(self, stored: torch.dtype) -> torch.dtype:
        """The dtype of the weights, for a matrix that is not quantised and has dtype `stored` in the file."""
        return self._weight_dtype(stored if stored in _HALVES else self.config.dtype)

    def _weight_dtype(self, kept: torch.dtype) -> torch.dtype:
        """The dtype that the config wants for weights. If it wants none, the CPU keeps `kept`."""
        is_on_cpu = self.device.type in ("cpu", "meta")
        return self.config.weight_dtype or (kept if is_on_cpu else self.config.dtype)

    def _note_matrix(self, size: int, dtype: torch.dtype) -> None:
        """Take note of a matrix of `size` numbers that are not in blocks."""
        self.matrix_dtypes.add(dtype)
        self.num_bytes += size * dtype.itemsize

    def _on_device(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert a tensor, or a part of one, and move it to the model's device."""
        return converted(tensor, dtype) if self.device.type == "cpu" else tensor.to(self.device, dtype)

    def _numbers(self, name: str, *shape: int) -> Tensor:
        """Tensor `name` in its stored dtype, or in float32 if it is stored in GGUF's blocks. On the device "meta", or
        on the CPU."""
        self._check(name, shape)
        stored = self._stored[name]
        is_in_blocks = stored.dtype in QUANTIZED
        if not is_in_blocks and stored.dtype not in errors.FLOATS:
            raise errors.not_floats(name, stored)
        if self.device.type == "meta":
            dtype = torch.float32 if is_in_blocks else DTYPES[stored.dtype]
            return torch.empty(shape, dtype=dtype, device=META)
        tensor = self._read(name)
        return Quantized(tensor, Format[stored.dtype], shape[-1]).dequantized() if is_in_blocks else tensor

    def dtype_of(self, name: str) -> str:
        """The dtype of tensor `name` as safetensors names it, "" if it is missing."""
        return self._stored[name].dtype if name in self._stored else ""

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of tensor `name`, (0,) if it is missing."""
        return self._stored[name].shape if name in self._stored else (0,)

    def take_part(self, name: str, dtypes: Sequence[str], *shape: int) -> Tensor:
        """A tensor of a quantised matrix, as it is stored. Raises `ModelError` for a wrong shape, and if its dtype is
        not among `dtypes`."""
        self._check_part(name, dtypes, shape)
        if self.device.type == "meta":
            dtype = DTYPES.get(self._stored[name].dtype, torch.uint8)
            return torch.empty(shape, dtype=dtype, device=META)
        return self._read(name)

    def take_small(self, name: str, dtypes: Sequence[str], *shape: int) -> Tensor:
        """A tensor as `take_part` returns it, with contents also on the device "meta"."""
        self._check_part(name, dtypes, shape)
        return self._read(name)

    def _check_part(self, name: str, dtypes: Sequence[str], shape: tuple[int, ...]) -> None:
        self._check(name, shape)
        if self._stored[name].dtype not in dtypes:
            raise errors.wrong_part(name, self._stored[name], dtypes)

    def take_all(self) -> dict[str, Tensor]:
        """All tensors by name, in their stored dtypes: on the CPU, views of the files' pages, or on the device "meta"
        without contents. Raises `ModelError` for dtypes that weft does not read."""
        tensors: dict[str, Tensor] = {}
        for name in [name for name in self._stored if name in self._left]:
            stored = self._stored[name]
            if stored.dtype not in DTYPES or stored.dtype in ONLY_QUANTIZED:
                raise errors.not_floats(name, stored)
            self._take_note(name)
            dtype = DTYPES[stored.dtype]
            if self.device.type == "meta":
                tensors[name] = torch.empty(stored.shape, dtype=dtype, device=META)
            else:
                tensors[name] = self._read(name, is_advanced_later=True)
            if len(stored.shape) > 1:
                self._note_matrix(prod(stored.shape), self.config.weight_dtype or dtype)
            else:
                self.num_bytes += prod(stored.shape) * self.config.dtype.itemsize
        return tensors

    def _read(self, name: str, is_advanced_later: bool = False) -> Tensor:
        """Tensor `name`, a view of the file's pages. The progress advances now, or when the last view is gone."""
        progress, num_bytes = self._progress, self._stored[name].num_bytes
        if progress is None or not is_advanced_later:
            if progress is not None:
                progress.advance(num_bytes)
            return self._files.take(name)
        return self._files.take(name, partial(progress.advance, num_bytes))

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        """Take note of a tensor that is used. Raises `ModelError` if it is missing or has another shape."""
        stored = self._stored.get(name)
        if stored is None:
            raise errors.missing(self.directory, name, shape, self._stored, self.config)
        if stored.shape != shape:
            raise errors.misshapen(name, stored, shape, self.config)
        if name in self._left:
            self._take_note(name)

    def _take_note(self, name: str) -> None:
        self._left.discard(name)
        self.taken.append(name)

    def drop(self, name: str) -> None:
        """Let the checkpoint contain tensor `name` although it is not used."""
        self._left.discard(name)

    def drop_all(self, prefix: str) -> None:
        """Let the checkpoint contain tensors whose names begin with `prefix`; another loader uses them."""
        self._left = {name for name in self._left if not name.startswith(prefix)}

    def finish(self, prefix: str = "") -> None:
        """Raise `ModelError` if a tensor whose name begins with `prefix` was neither taken nor dropped."""
        left = sorted(
            name
            for name in self._left
            if name.startswith(prefix) and not name.endswith(_IGNORABLE) and not self._is_idle(name)
        )
        if left:
            raise errors.unexpected(left, self._stored, self.config)

    def _is_idle(self, name: str) -> bool:
        """Whether a quantised checkpoint has tensor `name` that weft leaves aside."""
        method = self.config.quantization
        if method is None:
            return False
        if method.is_unused(name):
            return True
        if not (method.has_idle_biases and name.endswith(errors.BIAS)):
            return False
        return method.holds(self, name.removesuffix(errors.BIAS) + WEIGHT) and not self._read(name).any()
