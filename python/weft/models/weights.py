"""Loads a Hugging Face directory: config.json, and weights in one safetensors file or in shards.

A model is built twice. The first time its weights have no contents, so that a missing, wrong or unused tensor is found
before any is read and before memory is allocated.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
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
from weft.models.config import DTYPES, ModelConfig, refuse_quantized
from weft.models.fields import Fields, UnsupportedConfig
from weft.models.matrices import Matrices
from weft.models.mtp_layout import INSIDE
from weft.models.mxfp4 import BLOCKS, SCALES, Mxfp4Tensor
from weft.models.progress import LoadProgress
from weft.models.stored import DTYPES as STORED_DTYPES
from weft.models.stored import MappedFiles, Stored, parameters_of, stored_tensors
from weft.ops.huge_pages import converted
from weft.ops.mxfp4 import BLOCK, BYTES
from weft.ops.packing import PackingThreads
from weft.registry import MODELS, load
from weft.runtime.host_memory import available_bytes

META = torch.device("meta")
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
_LAYER = re.compile(r"layers\.(\d+)\.")


class Checkpoint:
    """The tensors of a directory's `model.safetensors`, or of the shards in its index. A context manager.

    The methods `take...` return tensors by name; `finish` raises if some were never taken. On the device "meta", all
    but `take_raw` read only headers, and return tensors without contents. Then `taken` has the names in order,
    `num_bytes` is the memory that the tensors will need on a device, and `matrix_dtypes` are the dtypes of matrices
    there. `like` is such a checkpoint of the same model: its order is the one in which the system reads the files.
    `progress` is advanced by the bytes of each tensor."""

    def __init__(
        self,
        directory: Path,
        config: ModelConfig,
        device: torch.device,
        like: Checkpoint | None = None,
        progress: LoadProgress | None = None,
    ) -> None:
        self.directory = directory
        self.config = config
        self.device = device
        self.taken: list[str] = []
        self.num_bytes = 0
        self.matrix_dtypes: set[torch.dtype] = set()
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
        return parameters_of({name: self._stored[name] for name in self.taken})

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

    def take_matrix(self, name: str, *shape: int) -> Tensor:
        """Tensor `name` in the dtype of the weights, on the model's device. On the CPU it may be a view of the file's
        pages."""
        tensor = self._floats(name, *shape)
        return self._placed(tensor, self._dtype_of_matrix(tensor))

    def take_matrices(self, name: str, *shape: int) -> Matrices:
        """The matrices of tensor `name` [E, out, in], as `take_matrix` returns one. Each is converted when it is read,
        and stays in memory only as long as it is used."""
        tensor = self._floats(name, *shape)
        dtype = self._dtype_of_matrix(tensor)
        return Matrices(len(tensor), lambda index: self._placed(tensor[index], dtype))

    def _dtype_of_matrix(self, stored: Tensor) -> torch.dtype:
        """The dtype of the weights, for a tensor as it is stored. Takes note of it and of the memory for the tensor."""
        own = stored.dtype if stored.dtype in _HALVES else self.config.dtype
        dtype = self.config.weight_dtype or own
        self.matrix_dtypes.add(dtype)
        self.num_bytes += stored.numel() * dtype.itemsize
        return dtype

    def _placed(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert a stored tensor, or a part of one, and move it to the model's device."""
        return converted(tensor, dtype) if self.device.type == "cpu" else tensor.to(self.device, dtype)

    def take_mxfp4(self, name: str, *shape: int) -> Mxfp4Tensor:
        """Tensor `name` [E, out, in], which is stored in MXFP4. Its matrices have the dtype of the weights, and are on
        the model's device."""
        count, num_outputs, num_inputs = shape
        if num_inputs % BLOCK:
            raise ModelError(
                f"{self.directory}: config.json wants rows of {num_inputs} numbers in tensor {name!r}; MXFP4 has "
                f"blocks of {BLOCK}"
            )
        dtype = self.config.weight_dtype or torch.bfloat16
        self.matrix_dtypes.add(dtype)
        self.num_bytes += prod(shape) * dtype.itemsize
        groups = count, num_outputs, num_inputs // BLOCK
        blocks = self._bytes(name + BLOCKS, *groups, BYTES)
        return Mxfp4Tensor(blocks, self._bytes(name + SCALES, *groups), dtype, self.device)

    def _bytes(self, name: str, *shape: int) -> Tensor:
        self._check(name, shape)
        stored = self._stored[name]
        if stored.dtype != "U8":
            raise ModelError(f"{stored.path}: tensor {name!r} is {stored.dtype}; expected MXFP4, of U8")
        if self.device.type == "meta":
            return torch.empty(shape, dtype=torch.uint8, device=META)
        return self._read(name).contiguous()

    def _floats(self, name: str, *shape: int) -> Tensor:
        self._check(name, shape)
        stored = self._stored[name]
        if stored.dtype not in _FLOATS:
            raise _wrong_dtype(name, stored)
        if self.device.type == "meta":
            return torch.empty(shape, dtype=STORED_DTYPES[stored.dtype], device=META)
        return self.take_raw(name, *shape)

    def _counted(self, tensor: Tensor) -> Tensor:
        self.num_bytes += tensor.numel() * tensor.element_size()
        return tensor

    def take_all(self) -> dict[str, Tensor]:
        """All tensors by name, in their stored dtypes: on the CPU, views of the files' pages, or on the device "meta"
        without contents. Raises `ModelError` for dtypes that weft does not read."""
        tensors: dict[str, Tensor] = {}
        for name in [name for name in self._stored if name in self._left]:
            stored = self._stored[name]
            if stored.dtype not in STORED_DTYPES:
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
        config = self.config
        knows = config.mixture is not None and config.mixture.quantization
        if not knows and any(other.endswith(_QUANTIZED) for other in self._stored):
            return "The weights are quantized, which is not supported; use the original model, in bfloat16"
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
            name for name in self._left if name.startswith(prefix) and not name.endswith(_IGNORABLE)
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
        elif any(name.endswith(_QUANTIZED) for name in left):
            reason = "The weights are quantized, which is not supported; use the original model, in bfloat16"
        raise ModelError(
            f"{self._stored[left[0]].path}: unexpected tensors {', '.join(map(repr, left[:3]))}{more}. {reason}"
        )


def _wrong_dtype(name: str, stored: Stored) -> ModelError:
    return ModelError(
        f"{stored.path}: tensor {name!r} is {stored.dtype}; expected floating-point weights, of {', '.join(_FLOATS)}. "
        "Quantized checkpoints are not supported; use the original one, in bfloat16"
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

    def take_matrices(self, name: str, *shape: int) -> Matrices:
        """The matrices of a tensor [E, ...] as `take_matrix` gives it."""
        return Matrices(shape[0], self.take_matrix(name, *shape).__getitem__)

    def take_mxfp4(self, name: str, *shape: int) -> Mxfp4Tensor:
        """Random numbers in MXFP4, for a tensor [E, out, in]. Their spread is at most that of `take`."""
        count, num_outputs, num_inputs = shape
        groups = count, num_outputs, num_inputs // BLOCK
        generator = self._generator
        blocks = torch.randint(
            256, (*groups, BYTES), generator=generator, device=generator.device, dtype=torch.uint8
        )
        exponent = floor(log2(num_inputs**-0.5 / 3))  # the root mean square of the 16 numbers is 2.9
        scales = torch.full(groups, 127 + exponent, dtype=torch.uint8)
        return Mxfp4Tensor(blocks.cpu(), scales, self.weight_dtype, self.device)

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
) -> Model:
    """Load the model of a directory onto `device`, for texts of at most `max_seq_len` tokens (default: unknown).

    `dtype` is "float32", "float16", "bfloat16" or "auto" (`with_dtype`): on CUDA the dtype in config.json, on the CPU
    the stored one. Raises `ModelError` for missing, unexpected or misshapen tensors and for unknown architectures.
    """
    directory, device = Path(path), torch.device(device)
    model_class, config = read_config(directory)
    config = replace(with_dtype(config, dtype, device), max_seq_len=max_seq_len)
    _, headers = check_weights(model_class, config, directory)
    _check_room(headers, device)
    with (
        torch.inference_mode(),
        LoadProgress(directory, headers.stored_bytes) as progress,
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
) -> Model:
    """Make a model like `load_model`, from a checkpoint's tensors by name and the contents of its config.json.

    `where` names the source in errors. The model may share memory with tensors that already have the right device and
    dtype, such as the embedding.
    """
    device = torch.device(device)
    model_class, config = parse_config(config_json, f"{where}: config.json")
    config = replace(with_dtype(config, dtype, device), max_seq_len=max_seq_len)
    with torch.inference_mode():
        build_model(model_class, config, WeightsInMemory(tensors, config, META, where))
        return build_model(model_class, config, WeightsInMemory(tensors, config, device, where))


def with_dtype(config: ModelConfig, dtype: str, device: torch.device) -> ModelConfig:
    """Set the dtypes of `config` for a model on `device`. `dtype` is the caller's choice, by name.

    On CUDA all tensors have `dtype`; "auto" means the dtype in config.json. The CPU computes in float32, and `dtype`
    applies only to the weights. There "auto" keeps the dtype of stored 16-bit weights, and converts others to the dtype
    in config.json."""
    if dtype not in ("auto", *DTYPES):
        raise ModelError(f"dtype {dtype!r} is none of 'auto', {', '.join(map(repr, DTYPES))}")
    if device.type == "cpu":
        own = config.dtype if config.dtype in _HALVES else None
        return replace(config, dtype=torch.float32, weight_dtype=DTYPES.get(dtype, own))
    chosen = DTYPES.get(dtype, config.dtype)
    return replace(config, dtype=chosen, weight_dtype=chosen)


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
        with PackingThreads():
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
        reason = str(error).splitlines()[0][:200]
        raise ModelError(
            f"{weights.directory}: there is no memory for a model of this size: {reason}"
        ) from error
    weights.finish()
    is_narrow = any(dtype is not torch.float32 for dtype in weights.matrix_dtypes)
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
    return parse_config(read_json(where), str(where))


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
