"""Loads a Hugging Face directory: config.json, and weights in one safetensors file, in shards, or in a GGUF file.

A model is built twice. The first time its weights have no contents, so that a missing, wrong or unused tensor is found
before any is read and before memory is allocated.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import floor, log2, prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.core.files import read_json
from weft.errors import InputError, ModelError
from weft.models.base import Model
from weft.models.config import DTYPES, ModelConfig
from weft.models.fields import Fields, UnsupportedConfig
from weft.models.gguf.header import read_header
from weft.models.gguf.names import QUANTIZED, switches
from weft.models.matrices import Matrices
from weft.models.mtp_layout import INSIDE
from weft.models.progress import LoadProgress
from weft.models.quantized.ggml import Ggml
from weft.models.quantized.method import WEIGHT, Blocks, Floats
from weft.models.quantized.mxfp4 import Mxfp4
from weft.models.quantized.options import ADVICE
from weft.models.quantized.parse import KEY, read_model_config, refuse_quantized
from weft.models.stored import DTYPES as STORED_DTYPES
from weft.models.stored import ONLY_QUANTIZED, MappedFiles, Stored, gguf_file, parameters_of, stored_tensors
from weft.ops.formats import Format
from weft.ops.huge_pages import converted
from weft.ops.packing import PackingThreads, activations_named
from weft.ops.quantized import Matrix, Quantized
from weft.registry import MODELS, load
from weft.runtime.host_memory import available_bytes

META = torch.device("meta")
BIAS = ".bias"
_IGNORABLE = ("rotary_emb.inv_freq",)
_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = ("F64", "F32", "F16", "BF16")
_QUANTIZED = (
    ".qweight",
    ".weight_packed",
    ".weight_scale",
    ".weight_scale_inv",
    ".absmax",
    ".SCB",
    "_scales",
    "_blocks",
)
"""Ends of the names of tensors that only quantized checkpoints have."""
_NOT_TOLD = f"The weights are quantised, and {KEY!r} in config.json does not say how; {ADVICE}"
_LAYER = re.compile(r"layers\.(\d+)\.")


class Checkpoint:
    """The tensors of a directory's `model.safetensors`, or of the shards in its index. A context manager.

    The methods `take...` return tensors by name; `finish` raises if some were never taken. On the device "meta", all
    but `take_raw` and `take_small` read only headers, and return tensors without contents. Then `taken` has the names
    in order, `num_bytes` is the memory that the tensors will need on a device, and `matrix_dtypes` and
    `matrix_formats` are the dtypes of matrices there and the formats of quantised ones. `num_widened` quantised ones
    become numbers because no format fits them. `like` is such a checkpoint of
    the same model: its order is the one in which the system reads the files. `progress` is advanced by the bytes of
    each tensor."""

    def __init__(
        self,
        directory: Path,
        config: ModelConfig,
        device: torch.device,
        like: Checkpoint | None = None,
        progress: LoadProgress | None = None,
    ) -> None:
        self.directory = gguf_file(directory) or directory
        self.config = config
        self.device = device
        self.taken: list[str] = []
        self.num_bytes = 0
        self.matrix_dtypes: set[torch.dtype] = set()
        self.matrix_formats: set[Format] = set()
        self.num_widened = 0
        self._progress = progress
        self._stored: Mapping[str, Stored] = like._stored if like is not None else stored_tensors(directory)
        self._left = set(self._stored)
        self._files = MappedFiles(self._stored, like.taken if like is not None else ())

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
        tensor = self._floats(name, *shape)
        # The first conversion rounds as on CUDA, where this tensor too has the weights' dtype.
        result = tensor.to(self.config.weight_dtype or tensor.dtype).to(self.device, self.config.dtype)
        return self._counted(result.clone() if result is tensor else result)

    def take_float(self, name: str, *shape: int) -> Tensor:
        """Tensor `name` in float32, not rounded, on the model's device."""
        tensor = self._floats(name, *shape)
        result = tensor.to(self.device, torch.float32)
        return self._counted(result.clone() if result is tensor else result)

    def take_matrix(self, name: str, *shape: int) -> Matrix:
        """Tensor `name` as it is quantised, or in the dtype of the weights, on the model's device. On the CPU it may be
        a view of the file's pages."""
        method = self.config.quantization
        if method is not None and method.holds(self, name):
            return self._matrix(method.take(self, name, *shape), self.config.dequantizes)
        return self._floats_matrix(name, *shape)

    def take_dense(self, name: str, *shape: int) -> Tensor:
        """Tensor `name` as `take_matrix` returns it, but a quantised one is dequantised: on the CPU to the dtype of its
        factors, on CUDA to the model's dtype."""
        method = self.config.quantization
        if method is None or not method.holds(self, name):
            return self._floats_matrix(name, *shape)
        stored = method.take(self, name, *shape)
        return self._numbers(stored, self._dtype_of_numbers(stored))

    def take_experts(self, names: Sequence[str], *shape: int) -> Matrices:
        """The matrices `names`, each as `take_matrix` returns it when it is read. If the inputs of one of them are in
        an order of their own, all are dequantised."""
        method = self.config.quantization
        is_dense = method is not None and any(
            method.holds(self, name) and method.is_ordered(self, name) for name in names
        )
        self.num_widened += len(names) * is_dense
        take = self.take_dense if is_dense else self.take_matrix
        return Matrices(len(names), lambda index: take(names[index], *shape))

    def take_matrices(self, name: str, *shape: int) -> Matrices:
        """The matrices of tensor `name` [E, out, in], as `take_matrix` returns one. Each is converted when it is read,
        and stays in memory only as long as it is used."""
        method = self.config.quantization
        if method is not None and method.holds(self, name):
            each, dequantizes = method.take_each(self, name, *shape), self.config.dequantizes
            return Matrices(len(each), lambda index: self._matrix(each[index], dequantizes))
        tensor = self._floats(name, *shape)
        dtype = self._dtype_of_matrix(tensor)
        return Matrices(len(tensor), lambda index: self._placed(tensor[index], dtype))

    def _floats_matrix(self, name: str, *shape: int) -> Tensor:
        tensor = self._floats(name, *shape)
        return self._placed(tensor, self._dtype_of_matrix(tensor))

    def _matrix(self, stored: Blocks | Floats, dequantizes: bool) -> Matrix:
        """A quantised matrix on the model's device. It is dequantised if that is wanted, or if no format fits it."""
        if isinstance(stored, Floats):
            self.num_widened += not dequantizes
            return self._numbers(stored, self._dtype_of_numbers(stored))
        if dequantizes:
            return self._numbers(stored, self.config.weight_dtype or self.config.dtype)
        num_outputs, num_inputs = stored.shape
        sizes = num_outputs, -(-num_inputs // stored.format.block.inputs) * stored.format.block.bytes
        self.matrix_formats.add(stored.format)
        self.num_bytes += prod(sizes)
        is_meta = self.device.type == "meta"
        rows = (
            torch.empty(sizes, dtype=torch.uint8, device=META) if is_meta else stored.read().to(self.device)
        )
        return Quantized(rows, stored.format, num_inputs, stored.order)

    def _dtype_of_numbers(self, stored: Blocks | Floats) -> torch.dtype:
        """The dtype of the weights, for the numbers of a quantised matrix."""
        own = stored.dtype if self.device.type in ("cpu", "meta") else self.config.dtype
        return self.config.weight_dtype or own

    def _numbers(self, stored: Blocks | Floats, dtype: torch.dtype) -> Tensor:
        """A quantised matrix in `dtype`, on the model's device."""
        self.matrix_dtypes.add(dtype)
        self.num_bytes += prod(stored.shape) * dtype.itemsize
        if self.device.type == "meta":
            return torch.empty(stored.shape, dtype=dtype, device=META)
        if isinstance(stored, Floats):
            return stored.read(dtype).to(self.device)
        matrix = Quantized(stored.read(), stored.format, stored.shape[1], stored.order)
        return matrix.dequantized(dtype).to(self.device)

    def _dtype_of_matrix(self, stored: Tensor) -> torch.dtype:
        """The dtype of the weights, for a tensor as it is stored. Takes note of it and of the memory for the tensor."""
        keeps_own = stored.dtype in _HALVES and self.device.type in ("cpu", "meta")
        own = stored.dtype if keeps_own else self.config.dtype
        dtype = self.config.weight_dtype or own
        self.matrix_dtypes.add(dtype)
        self.num_bytes += stored.numel() * dtype.itemsize
        return dtype

    def _placed(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert a stored tensor, or a part of one, and move it to the model's device."""
        return converted(tensor, dtype) if self.device.type == "cpu" else tensor.to(self.device, dtype)

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
            dtype = STORED_DTYPES.get(self._stored[name].dtype, torch.uint8)
            return torch.empty(shape, dtype=dtype, device=META)
        return self._read(name)

    def take_small(self, name: str, dtypes: Sequence[str], *shape: int) -> Tensor:
        """A tensor as `take_part` returns it, with contents also on the device "meta"."""
        self._check_part(name, dtypes, shape)
        return self._read(name)

    def _check_part(self, name: str, dtypes: Sequence[str], shape: tuple[int, ...]) -> None:
        self._check(name, shape)
        stored = self._stored[name]
        if stored.dtype not in dtypes:
            raise ModelError(
                f"{stored.path}: tensor {name!r} is {stored.dtype}; expected {' or '.join(dtypes)}, by "
                f"{KEY!r} in config.json"
            )

    def _floats(self, name: str, *shape: int) -> Tensor:
        self._check(name, shape)
        stored = self._stored[name]
        if stored.dtype in QUANTIZED:
            return self._dequantized(name, shape)
        if stored.dtype not in _FLOATS:
            raise _wrong_dtype(name, stored)
        if self.device.type == "meta":
            return torch.empty(shape, dtype=STORED_DTYPES[stored.dtype], device=META)
        return self.take_raw(name, *shape)

    def _dequantized(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The numbers of a tensor that is stored in blocks, float32, on the CPU."""
        if self.device.type == "meta":
            return torch.empty(shape, dtype=torch.float32, device=META)
        return Quantized(self._read(name), Format[self._stored[name].dtype], shape[-1]).dequantized()

    def _counted(self, tensor: Tensor) -> Tensor:
        self.num_bytes += tensor.numel() * tensor.element_size()
        return tensor

    def take_all(self) -> dict[str, Tensor]:
        """All tensors by name, in their stored dtypes: on the CPU, views of the files' pages, or on the device "meta"
        without contents. Raises `ModelError` for dtypes that weft does not read."""
        tensors: dict[str, Tensor] = {}
        for name in [name for name in self._stored if name in self._left]:
            stored = self._stored[name]
            if stored.dtype not in STORED_DTYPES or stored.dtype in ONLY_QUANTIZED:
                raise _wrong_dtype(name, stored)
            self._left.discard(name)
            self.taken.append(name)
            dtype = STORED_DTYPES[stored.dtype]
            if self.device.type == "meta":
                tensors[name] = torch.empty(stored.shape, dtype=dtype, device=META)
            else:
                tensors[name] = self._read(name, is_advanced_later=True)
            if len(stored.shape) > 1:
                dtype = self.config.weight_dtype or dtype
                self.matrix_dtypes.add(dtype)
            else:
                dtype = self.config.dtype
            self.num_bytes += prod(stored.shape) * dtype.itemsize
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
            raise ModelError(
                f"{self.directory}: no tensor {name!r}; expected one of shape {list(shape)}. "
                f"{self._why_missing(name)}"
            )
        if stored.shape != shape:
            raise ModelError(
                f"{stored.path}: tensor {name!r} has shape {list(stored.shape)}; config.json wants {list(shape)}. "
                f"{_why_misshapen(self.config, stored.shape, shape)}"
            )
        if name in self._left:
            self._left.discard(name)
            self.taken.append(name)

    def _why_missing(self, name: str) -> str:
        """Tell what to do about a tensor that is missing."""
        config, method = self.config, self.config.quantization
        if method is None and any(other.endswith(_QUANTIZED) for other in self._stored):
            return _NOT_TOLD
        if name == "lm_head.weight":
            return (
                "If the output projection shares the embedding's weights, 'tie_word_embeddings' in config.json must "
                "be true; else get the model again"
            )
        layer = _LAYER.search(name)
        if layer is not None and not any(layer[0] in other for other in self._stored):
            return (
                f"'num_hidden_layers' in config.json is {config.num_layers}, and the weights have no layer {layer[1]}; "
                "get the weights and the config.json of one model"
            )
        if name.endswith(".bias"):
            return (
                "config.json or the architecture that it names wants biases ('attention_bias', 'mlp_bias'); get the "
                "weights and the config.json of one model"
            )
        if method is not None and method.packed and name.endswith(WEIGHT) and not isinstance(method, Mxfp4):
            return f"Nor is there {method.codes_name(name)!r}, which {method.title} would have. Get the model again"
        return "Get the model again, its weights and its config.json"

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
        if not left:
            return
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        reason = "The architecture that config.json names has no place for them"
        layers = {int(layer[1]) for layer in map(_LAYER.search, left) if layer is not None}
        if layers and min(layers) >= self.config.num_layers:
            reason = f"'num_hidden_layers' in config.json is {self.config.num_layers}, and the weights have more layers"
        elif all(name.endswith(".bias") for name in left):
            reason += ", or a key such as 'attention_bias' is false there"
        elif self.config.quantization is None and any(name.endswith(_QUANTIZED) for name in left):
            reason = _NOT_TOLD
        raise ModelError(
            f"{self._stored[left[0]].path}: unexpected tensors {', '.join(map(repr, left[:3]))}{more}. {reason}"
        )

    def _is_idle(self, name: str) -> bool:
        """Whether a quantised checkpoint has tensor `name` that weft leaves aside."""
        method = self.config.quantization
        if method is None:
            return False
        if method.is_unused(name):
            return True
        if not (method.has_idle_biases and name.endswith(BIAS)):
            return False
        return method.holds(self, name.removesuffix(BIAS) + WEIGHT) and not self._read(name).any()


def _wrong_dtype(name: str, stored: Stored) -> ModelError:
    return ModelError(
        f"{stored.path}: tensor {name!r} is {stored.dtype}; expected floating-point weights, of {', '.join(_FLOATS)}. "
        f"If the model is quantised, {KEY!r} in config.json must say how; {ADVICE}"
    )


def _why_misshapen(config: ModelConfig, shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Name the keys of config.json that contradict a tensor's shape."""
    advice = "Get the weights and the config.json of one model"
    sizes = {
        "'vocab_size'": config.vocab_size,
        "'hidden_size'": config.hidden_size,
        "'intermediate_size'": config.intermediate_size,
        "'num_attention_heads' times 'head_dim'": config.num_heads * config.head_dim,
        "'num_key_value_heads' times 'head_dim'": config.num_kv_heads * config.head_dim,
        "'head_dim'": config.head_dim,
    }
    for size, want in zip(shape, wanted, strict=False):
        keys = [key for key, value in sizes.items() if value == want]
        if size != want and keys and len(shape) == len(wanted):
            return f"{' or '.join(keys)} is {want} there, where the tensor has {size}. {advice}"
    return advice


class WeightsInMemory(Checkpoint):
    """A checkpoint whose tensors are in a mapping in memory."""

    def __init__(
        self, tensors: Mapping[str, Tensor], config: ModelConfig, device: torch.device, where: Path
    ) -> None:
        names = {dtype: name for name, dtype in STORED_DTYPES.items()}
        self.directory = where
        self.config = config
        self.device = device
        self.taken = []
        self.num_bytes = 0
        self.matrix_dtypes = set()
        self.matrix_formats = set()
        self.num_widened = 0
        self._progress = None
        wrong = [name for name, tensor in tensors.items() if not isinstance(tensor, Tensor)]
        if wrong:
            raise ModelError(f"{where}: {wrong[0]!r} is a {type(tensors[wrong[0]]).__name__}, not a tensor")
        self._tensors = tensors
        self._stored = {
            name: Stored(
                where, names.get(t.dtype, str(t.dtype)), tuple(t.shape), 0, t.numel() * t.element_size()
            )
            for name, t in self._tensors.items()
        }
        self._files = MappedFiles({})
        self._left = set(self._stored)

    def _read(self, name: str, is_advanced_later: bool = False) -> Tensor:
        """Tensor `name` as given, without a copy."""
        return self._tensors[name].detach()


class RandomWeights:
    """A `WeightSource` of random weights with a small spread, and ones for norms. The same seed and order of calls give
    the same weights. No name is in it, so a model takes none of the tensors that checkpoints may lack."""

    directory = Path("random weights")

    def __init__(self, config: ModelConfig, seed: int, device: torch.device | str = "cpu") -> None:
        self.dtype, self.weight_dtype = config.dtype, config.weight_dtype or config.dtype
        self._has_mxfp4 = isinstance(config.quantization, Mxfp4) and not config.dequantizes
        self.device = torch.device(device)
        self._generator = torch.Generator().manual_seed(seed)

    def __contains__(self, name: str) -> bool:
        return False

    def take_matrix(self, name: str, *shape: int) -> Tensor:
        """The tensor of `take`, converted to the dtype of the weights."""
        return self.take(name, *shape).to(self.weight_dtype)

    def take_float(self, name: str, *shape: int) -> Tensor:
        """The tensor of `take` in float32."""
        return self.take(name, *shape).float()

    def take(self, name: str, *shape: int) -> Tensor:
        """A tensor for `name`: ones for a norm's weight, else numbers from a normal distribution, divided by the square
        root of the last dimension (a matrix's input width)."""
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=self.dtype, device=self.device)
        tensor = torch.randn(shape, generator=self._generator).mul_(float(shape[-1]) ** -0.5)
        return tensor.to(self.device, self.dtype)

    def take_dense(self, name: str, *shape: int) -> Tensor:
        """The matrix of `take_matrix`."""
        return self.take_matrix(name, *shape)

    def take_experts(self, names: Sequence[str], *shape: int) -> Matrices:
        """Matrices as `take_matrix` gives them."""
        return Matrices(len(names), lambda index: self.take_matrix(names[index], *shape))

    def take_matrices(self, name: str, *shape: int) -> Matrices:
        """The matrices of a tensor [E, ...] as `take_matrix` gives it, or in MXFP4 if the model is published so."""
        if self._has_mxfp4:
            return Matrices(shape[0], self._mxfp4(*shape).__getitem__)
        return Matrices(shape[0], self.take_matrix(name, *shape).__getitem__)

    def _mxfp4(self, count: int, num_outputs: int, num_inputs: int) -> Quantized:
        """Random numbers in MXFP4. Their spread is at most that of `take`."""
        format, generator = Format.MXFP4, self._generator
        sizes = count, num_outputs, num_inputs // format.block.inputs, format.block.bytes
        rows = torch.randint(256, sizes, generator=generator, device=generator.device, dtype=torch.uint8)
        rows[..., 0] = 127 + floor(
            log2(num_inputs**-0.5 / 3)
        )  # the root mean square of the 16 numbers is 2.9
        return Quantized(rows.flatten(2).to(self.device), format, num_inputs)

    def take_all(self) -> dict[str, Tensor]:
        """Raises `ModelError`: without a checkpoint there is no list of tensors."""
        raise ModelError(
            "random weights have no list of tensors, which a model that transformers runs takes; use a checkpoint"
        )

    def drop_all(self, prefix: str) -> None:
        """Do nothing, because there are no tensors but those that were taken."""


def load_model(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: str = "auto",
    max_seq_len: int | None = None,
    activation_dtype: str = "auto",
    like: ModelConfig | None = None,
) -> Model:
    """Load the model of a directory onto `device`, for texts of at most `max_seq_len` tokens (default: unknown).

    `dtype` is "float32", "float16", "bfloat16" or "auto" (`with_dtype`): on CUDA the dtype in config.json, on the CPU
    the stored one. Quantised matrices stay as they are with "auto", and get the other dtypes. `activation_dtype` is as
    in `EngineConfig`. `like` is the config of another model, whose dtypes count instead of both (`with_dtype_of`).
    Raises `ModelError` for missing, unexpected or misshapen tensors and for unknown architectures, and `InputError` for
    an `activation_dtype` that `device` does not have.
    """
    directory, device = Path(path), torch.device(device)
    model_class, config = read_config(directory)
    if like is None:
        rounding = activations_named(activation_dtype, device)
        config = replace(with_dtype(config, dtype, device), rounding=rounding)
    else:
        config = replace(with_dtype_of(config, like, device), rounding=like.rounding)
    config = replace(config, max_seq_len=max_seq_len)
    _, headers = check_weights(model_class, config, directory)
    _check_room(headers, device)
    with (
        torch.inference_mode(),
        LoadProgress(headers.directory, headers.stored_bytes) as progress,
        Checkpoint(directory, config, device, headers, progress) as weights,
    ):
        return build_model(model_class, config, weights)


def check_weights(model_class: type[Model], config: ModelConfig, directory: Path) -> tuple[Model, Checkpoint]:
    """Check a directory's weights by their headers. Returns the model without contents, on the device "meta", and the
    headers of the tensors that it takes. Raises `ModelError` for missing, unexpected or misshapen tensors and for wrong
    dtypes."""
    headers = Checkpoint(directory, config, META)
    with torch.inference_mode():
        return build_model(model_class, config, headers), headers


def _check_room(headers: Checkpoint, device: torch.device) -> None:
    """Raise `ModelError` if the weights do not fit in the free memory. Else the system would end a process."""
    if device.type != "cpu":
        return  # the device's allocator refuses
    try:
        free = available_bytes()
    except InputError:  # unknown
        return
    if headers.num_bytes > free:
        raise ModelError(
            f"{headers.directory}: there is no memory for a model of this size: its weights need "
            f"{headers.num_bytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; use a smaller model, or end other "
            "processes"
        )


def model_in_memory(
    tensors: Mapping[str, Tensor],
    config_json: Mapping[str, Any],
    device: str | torch.device = "cpu",
    dtype: str = "auto",
    where: Path = Path("weights in memory"),
    max_seq_len: int | None = None,
    activation_dtype: str = "auto",
) -> Model:
    """Make a model like `load_model`, from a checkpoint's tensors by name and the contents of its config.json.

    `where` names the source in errors. The model may share memory with tensors that already have the right device and
    dtype, such as the embedding.
    """
    device = torch.device(device)
    model_class, config = parse_config(config_json, f"{where}: config.json")
    config = replace(
        with_dtype(config, dtype, device),
        rounding=activations_named(activation_dtype, device),
        max_seq_len=max_seq_len,
    )
    with torch.inference_mode():
        build_model(model_class, config, WeightsInMemory(tensors, config, META, where))
        return build_model(model_class, config, WeightsInMemory(tensors, config, device, where))


def with_dtype(config: ModelConfig, dtype: str, device: torch.device) -> ModelConfig:
    """Set the dtypes of `config` for a model on `device`. `dtype` is the caller's choice, by name.

    On CUDA all tensors have `dtype`; "auto" means the dtype in config.json. The CPU computes in float32, and `dtype`
    applies only to the weights. There "auto" keeps the dtype of stored 16-bit weights, and converts others to the dtype
    in config.json. Other dtypes than "auto" are also those of quantised matrices."""
    if dtype not in ("auto", *DTYPES):
        raise ModelError(f"dtype {dtype!r} is none of 'auto', {', '.join(map(repr, DTYPES))}")
    is_chosen = dtype in DTYPES
    if device.type == "cpu":
        own = config.dtype if config.dtype in _HALVES and not config.keeps_formats else None
        weight_dtype = DTYPES.get(dtype, own)
        return replace(config, dtype=torch.float32, weight_dtype=weight_dtype, dequantizes=is_chosen)
    chosen = DTYPES.get(dtype, config.dtype)
    weight_dtype = chosen if is_chosen or not config.keeps_formats else None
    return replace(config, dtype=chosen, weight_dtype=weight_dtype, dequantizes=is_chosen)


def with_dtype_of(config: ModelConfig, other: ModelConfig, device: torch.device) -> ModelConfig:
    """Set the dtypes of `config` as those of `other`, a model on `device`. A quantised model is dequantised only if the
    caller chose a dtype for `other`."""
    name = "auto" if config.keeps_formats and not other.dequantizes else dtype_name(other)
    return replace(with_dtype(config, name, device), dtype=other.dtype)


def dtype_name(config: ModelConfig) -> str:
    """The name to pass to `load_model` as `dtype`, so that another model gets the weight dtype of `config`."""
    return next((name for name, dtype in DTYPES.items() if dtype == config.weight_dtype), "auto")


def build_model(model_class: type[Model], config: ModelConfig, weights: Checkpoint) -> Model:
    """Make the model. Raises `ModelError` if `weights` holds unused tensors or the model does not fit in memory."""
    if config.tie_word_embeddings:
        weights.drop("lm_head.weight")
    for layout in INSIDE:
        for module in range(config.num_mtp_modules):
            weights.drop_all(layout.prefix(module, config.num_layers))
    try:
        with PackingThreads(config.rounding):
            model = model_class(config, weights)
    except (
        RuntimeError,
        MemoryError,
        OSError,
    ) as error:  # torch's CPU allocators raise nothing more specific
        if isinstance(error, RuntimeError) and "alloc" not in str(error):
            raise
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        reason = (str(error).splitlines() or ["the system gives no more"])[0][:200]
        raise ModelError(
            f"{weights.directory}: there is no memory for a model of this size: {reason}"
        ) from error
    weights.finish()
    is_narrow = bool(weights.matrix_formats) or any(
        each is not torch.float32 for each in weights.matrix_dtypes
    )
    model.config = replace(model.config, has_narrow_weights=is_narrow)
    return model


def read_config(directory: Path) -> tuple[type[Model], ModelConfig]:
    """The model class of a directory's architecture, and the parsed config. Raises `ModelError`."""
    where = directory / "config.json"
    if not where.exists() and (directory / "adapter_config.json").is_file():
        base = read_json(directory / "adapter_config.json").get("base_model_name_or_path")
        raise ModelError(
            f"{directory}: this is a LoRA adapter (adapter_config.json), not a model; merge it into its base model"
            f"{f' {base}' if isinstance(base, str) else ''} (peft: merge_and_unload), and give the directory of that"
        )
    model_class, config = parse_config(read_model_config(directory), str(where))
    packed = gguf_file(directory)
    return model_class, config if packed is None else of_gguf(config, packed)


def of_gguf(config: ModelConfig, file: Path) -> ModelConfig:
    """The config of a model whose weights are in a GGUF file. `config` says the rest. Raises `ModelError`."""
    if config.why_generic:
        raise ModelError(f"{file}: weft runs GGUF files by modules of its own only: {config.why_generic}")
    return replace(config, quantization=Ggml(), **switches(read_header(file)))


def parse_config(data: Mapping[str, Any], where: str) -> tuple[type[Model], ModelConfig]:
    """The model class and the config for the contents of a config.json. `where` names the file in errors
    (`ModelError`)."""
    names = data.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelError(
            f"{where}: 'architectures' is {names!r}; it must name one, such as ['LlamaForCausalLM']"
        )
    native: type[Model] | None = load("models", names[0]) if names[0] in MODELS else None
    unsupported, why = None, f"weft has no module of its own for {names[0]}"
    if native is not None:
        try:
            return native, native.parse_config(data, where)
        except UnsupportedConfig as error:
            unsupported, why = error, str(error)
    refuse_quantized(Fields(data, where))
    generic: type[Model] = load("generic models", "transformers")
    try:
        return generic, replace(generic.parse_config(data, where), why_generic=why)
    except ModelError:
        if unsupported is not None:
            raise unsupported from None
        raise


def how_it_runs(model: Model) -> tuple[str, str]:
    """The code that runs a model, and the reason."""
    config, kind = model.config, type(model)
    if not config.why_generic:
        return f"{kind.__module__}.{kind.__name__}", f"weft has a module of its own for {config.architecture}"
    return (
        f"transformers' {config.architecture}, over weft's pages and operations (slower)",
        config.why_generic,
    )
