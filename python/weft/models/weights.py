"""Loads a Hugging Face directory: config.json, and weights in one safetensors file or in shards. Unused tensors are an
error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from weft.core.files import inside, read_json
from weft.errors import ModelError
from weft.models.base import Model
from weft.models.config import DTYPES, ModelConfig
from weft.models.mtp_layout import INSIDE
from weft.registry import MODELS, load

_IGNORABLE = ("rotary_emb.inv_freq",)
_HALVES = (torch.float16, torch.bfloat16)


class Checkpoint:
    """The tensors of a directory's `model.safetensors`, or of the shards in its index. A context manager.

    `take`, `take_matrix` and `take_raw` return tensors by name; `finish` raises if some were never taken.
    """

    def __init__(self, directory: Path, config: ModelConfig, device: torch.device) -> None:
        self.directory = directory
        self.config = config
        self.device = device
        self._files = _tensor_files(directory)
        self._open: dict[Path, Any] = {}
        self._left = set(self._files)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def take_raw(self, name: str, *shape: int) -> Tensor:
        """Tensor `name` in its stored dtype, on the CPU. Raises `ModelError` if it is missing or has another shape."""
        path = self._files.get(name)
        if path is None:
            raise ModelError(f"{self.directory}: no tensor {name!r}; expected one of shape {list(shape)}")
        tensor = self._stored(name)
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"{path}: tensor {name!r} has shape {list(tensor.shape)}; config.json wants {list(shape)}"
            )
        self._left.discard(name)
        return tensor

    def _stored(self, name: str) -> Tensor:
        path = self._files[name]
        if path not in self._open:
            self._open[path] = _open(path)
        try:
            tensor: Tensor = self._open[path].get_tensor(name)
        except SafetensorError as error:
            raise ModelError(
                f"{path}: tensor {name!r}, which the index places here, can't be read: {error}"
            ) from error
        return tensor

    def take(self, name: str, *shape: int) -> Tensor:
        """Tensor `name`, rounded to the dtype of the weights, then in the model's dtype, on its device."""
        tensor = self._floats(name, *shape)
        # The first conversion rounds as on CUDA, where this tensor too has the weights' dtype.
        return tensor.to(self.config.weight_dtype or tensor.dtype).to(self.device, self.config.dtype)

    def take_matrix(self, name: str, *shape: int) -> Tensor:
        """Tensor `name` in the dtype of the weights, on the model's device."""
        tensor = self._floats(name, *shape)
        own = tensor.dtype if tensor.dtype in _HALVES else self.config.dtype
        return tensor.to(self.device, self.config.weight_dtype or own)

    def _floats(self, name: str, *shape: int) -> Tensor:
        tensor = self.take_raw(name, *shape)
        if not tensor.is_floating_point():
            raise ModelError(
                f"{self._files[name]}: tensor {name!r} is {tensor.dtype}; expected floating-point weights"
            )
        return tensor

    def take_all(self) -> dict[str, Tensor]:
        """All tensors by name, in their stored dtypes. Those of files stay there until they are read."""
        names, self._left = [*self._left], set()
        return {name: self._stored(name) for name in names}

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
        if left:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise ModelError(
                f"{self._files[left[0]]}: unexpected tensors {', '.join(map(repr, left[:3]))}{more}; "
                "the architecture "
                "that config.json names has no place for them"
            )


class WeightsInMemory(Checkpoint):
    """A checkpoint whose tensors are in a mapping in memory."""

    def __init__(
        self, tensors: Mapping[str, Tensor], config: ModelConfig, device: torch.device, where: Path
    ) -> None:
        self.directory = where
        self.config = config
        self.device = device
        self._tensors = tensors
        self._files = dict.fromkeys(tensors, where)
        self._open = {}
        self._left = set(tensors)

    def take_raw(self, name: str, *shape: int) -> Tensor:
        """Tensor `name` as given, without a copy. Raises `ModelError` if it is missing or has another shape."""
        tensor = self._tensors.get(name)
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != shape:
            found = f"has shape {list(tensor.shape)}" if isinstance(tensor, Tensor) else "is not there"
            raise ModelError(f"{self.directory}: tensor {name!r} {found}; config.json wants {list(shape)}")
        self._left.discard(name)
        return tensor.detach()

    def _stored(self, name: str) -> Tensor:
        return self._tensors[name].detach()


class RandomWeights:
    """Makes random weights with a small spread, and ones for norms. The same seed and order of calls give the same
    weights."""

    def __init__(self, config: ModelConfig, seed: int, device: torch.device | str = "cpu") -> None:
        self.dtype, self.weight_dtype = config.dtype, config.weight_dtype or config.dtype
        self.device = device
        self._generator = torch.Generator().manual_seed(seed)

    def take_matrix(self, name: str, *shape: int) -> Tensor:
        """The tensor of `take`, converted to the dtype of the weights."""
        return self.take(name, *shape).to(self.weight_dtype)

    def take(self, name: str, *shape: int) -> Tensor:
        """A tensor for `name`: ones for a norm's weight, else numbers from a normal distribution, divided by the square
        root of the last dimension (a matrix's input width)."""
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=self.dtype, device=self.device)
        tensor = torch.randn(shape, generator=self._generator).mul_(float(shape[-1]) ** -0.5)
        return tensor.to(self.device, self.dtype)


def load_model(path: str | Path, device: str | torch.device = "cpu", dtype: str = "auto") -> Model:
    """Load the model of a directory onto `device`.

    `dtype` is "float32", "float16", "bfloat16" or "auto" (`with_dtype`): on CUDA the dtype in config.json, on the CPU
    the stored one. Raises `ModelError` for missing, unexpected or misshapen tensors and for unknown architectures.
    """
    directory, device = Path(path), torch.device(device)
    model_class, config = read_config(directory)
    config = with_dtype(config, dtype, device)
    with torch.inference_mode(), Checkpoint(directory, config, device) as weights:
        return build_model(model_class, config, weights)


def model_in_memory(
    tensors: Mapping[str, Tensor],
    config_json: Mapping[str, Any],
    device: str | torch.device = "cpu",
    dtype: str = "auto",
    where: Path = Path("weights in memory"),
) -> Model:
    """Make a model like `load_model`, from a checkpoint's tensors by name and the contents of its config.json.

    `where` names the source in errors. The model may share memory with tensors that already have the right device and
    dtype, such as the embedding.
    """
    device = torch.device(device)
    model_class, config = parse_config(config_json, f"{where}: config.json")
    config = with_dtype(config, dtype, device)
    with torch.inference_mode():
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
        model = model_class(config, weights)
    except (RuntimeError, MemoryError) as error:  # torch's CPU allocators raise nothing more specific
        if isinstance(error, RuntimeError) and "alloc" not in str(error):
            raise
        reason = str(error).splitlines()[0][:200]
        raise ModelError(
            f"{weights.directory}: there is no memory for a model of this size: {reason}"
        ) from error
    weights.finish()
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
    model_class: type[Model] = (
        load("models", names[0]) if names[0] in MODELS else load("generic models", "transformers")
    )
    return model_class, model_class.parse_config(data, where)


def count_parameters(directory: Path) -> int:
    """The number of parameters in a directory's weights. Reads only the headers of the files. Raises `ModelError`."""
    files, count = _tensor_files(directory), 0
    opened = {path: _open(path) for path in set(files.values())}
    for name, path in files.items():
        try:
            count += prod(opened[path].get_slice(name).get_shape())
        except SafetensorError as error:
            raise ModelError(
                f"{path}: tensor {name!r}, which the index places here, can't be read: {error}"
            ) from error
    return count


def _tensor_files(directory: Path) -> dict[str, Path]:
    """The file of each tensor, by name."""
    index = directory / "model.safetensors.index.json"
    single = directory / "model.safetensors"
    if index.exists():
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict):
            raise ModelError(f"{index}: 'weight_map' is missing; it must map tensor names to files")
        return {name: inside(directory, file, index) for name, file in places.items()}
    if single.exists():
        return dict.fromkeys(_open(single).keys(), single)
    if any(directory.glob("*.bin")):
        raise ModelError(
            f"{directory}: has weights only as .bin, which weft does not read; convert to safetensors"
        )
    raise ModelError(f"{directory}: has neither model.safetensors nor model.safetensors.index.json")


def _open(path: Path) -> Any:
    try:
        return safe_open(str(path), framework="pt")
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such file, though the index names it") from None
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: can't be read as safetensors: {error}") from error
