"""Each of weft's own families takes quantised matrices: its logits have the bits of those of their numbers, if products
do not round their input rows."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from pathlib import Path

import gguf
import pytest
import torch
from torch import Tensor

from support.families import FAMILIES, HYBRIDS, architecture_of, config_of, own_families
from weft.models.architectures import parse_config
from weft.models.base import Model, PagedKV, WeightSource
from weft.models.checkpoint import META
from weft.models.dtypes import with_dtype
from weft.models.matrices import Matrices
from weft.models.mixture import Mixture
from weft.ops.attention import Rows
from weft.ops.formats import Activations, Format
from weft.ops.packing import PackingThreads
from weft.ops.quantized import Matrix, Quantized

CPU = torch.device("cpu")
KINDS = (Format.Q8_0, Format.Q4_0, Format.Q4_1, Format.Q5_0)
SIZES = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}
DELTA = {"linear_key_head_dim": 8, "linear_value_head_dim": 16}


def quantized(numbers: Tensor, kind: Format) -> Quantized:
    """Quantise rows of any length: their last blocks are padded."""
    padded = torch.nn.functional.pad(numbers, (0, -numbers.shape[1] % 32))
    data = gguf.quants.quantize(padded.numpy(), gguf.GGMLQuantizationType[kind.name])
    return Quantized(torch.from_numpy(data), kind, numbers.shape[1])


class Source(WeightSource):
    """Random weights, each by its name. Matrices are quantised, or with `gives_numbers` they are the numbers of such
    matrices. With `one_format` all experts, shared ones too, have one."""

    directory = Path("random weights")

    def __init__(self, device: torch.device, gives_numbers: bool, one_format: bool) -> None:
        self.device, self.gives_numbers, self.one_format = device, gives_numbers, one_format

    def _random(self, name: str, shape: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        return torch.randn(shape, generator=generator) * 2 * shape[-1] ** -0.5

    def _kind(self, name: str) -> Format:
        if self.one_format and "expert" in name:
            return Format.Q8_0
        kind = "".join(letter for letter in name if not letter.isdigit())  # one for a layer's experts
        return KINDS[zlib.crc32(kind.encode()) % len(KINDS)]

    def _quantized(self, name: str, shape: tuple[int, ...]) -> Quantized:
        return quantized(self._random(name, shape), self._kind(name))

    def take(self, name: str, *shape: int) -> Tensor:
        return self._random(name, shape).to(self.device)

    take_float = take

    def take_matrix(self, name: str, *shape: int) -> Matrix:
        matrix = self._quantized(name, shape)
        return (matrix.dequantized() if self.gives_numbers else matrix).to(self.device)

    def take_dense(self, name: str, *shape: int) -> Tensor:
        return self._quantized(name, shape).dequantized().to(self.device)

    def take_in_order(self, names: Sequence[str], *shape: int) -> Matrices:
        return Matrices(len(names), lambda index: self.take_matrix(names[index], *shape))

    def take_matrices(self, name: str, *shape: int) -> Matrices:
        return Matrices(shape[0], lambda index: self.take(f"{name}.{index}", *shape[1:]))

    def take_all(self) -> dict[str, Tensor]:
        raise NotImplementedError

    def drop_all(self, prefix: str) -> None: ...

    def __contains__(self, name: str) -> bool:
        return False


def build(family: str, gives_numbers: bool, one_format: bool, device: torch.device = CPU) -> Model:
    settings = copy.deepcopy({**FAMILIES, **HYBRIDS}[family])
    for part in (settings, settings.get("text_config", {})):
        part |= SIZES
        if "linear_num_key_heads" in part:
            part |= DELTA
    data = config_of(family, settings).to_dict() | {"architectures": [architecture_of(family)]}
    model_class, config = parse_config(data, family)
    config = with_dtype(config, "float32", CPU)
    with torch.inference_mode(), PackingThreads(Activations.FLOAT32):
        return model_class(config, Source(device, gives_numbers, one_format))


@torch.inference_mode()
def logits_of(model: Model) -> Tensor:
    """The logits of a text that is read in two parts."""
    kv = PagedKV.for_model(model, 11, 4, num_slots=2)
    table, tokens = torch.arange(1, 11, dtype=torch.int32)[None], torch.arange(3, 30)[None]
    states = None if kv.states is None else kv.states.rows(torch.tensor([0]), 0)
    parts = []
    for begin, end in ((0, 20), (20, 27)):
        rows = Rows(table, torch.tensor([begin]), end - begin, states=states)
        parts.append(model.logits(model.forward(tokens[:, begin:end], kv, rows).last))
    return torch.cat(parts, 1)


@pytest.mark.parametrize("family", own_families())
def test_logits_have_the_bits_of_the_numbers(family: str) -> None:
    quantised, plain = (build(family, gives_numbers, True) for gives_numbers in (False, True))
    build(family, False, True, META)
    found, expected = logits_of(quantised), logits_of(plain)
    assert found.isfinite().all() and found.std() > 0.01
    assert torch.equal(found, expected)


@pytest.mark.parametrize("family", ["qwen2_moe", "deepseek_v3", "qwen3_next"])
@pytest.mark.parametrize("why", ["formats", "blocks"])
def test_shared_experts_may_be_stored_apart(family: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of another format, and those that can't be divided between blocks."""
    if why == "blocks":
        monkeypatch.setitem(SIZES, "moe_intermediate_size", 48)
        monkeypatch.setitem(SIZES, "shared_expert_intermediate_size", 96)
    one_format = why == "blocks"
    quantised, plain = (build(family, gives_numbers, one_format) for gives_numbers in (False, True))
    build(family, False, one_format, META)
    apart, together = (
        [layer.mlp.shared for layer in model.layers if isinstance(layer.mlp, Mixture)]
        for model in (quantised, plain)
    )
    assert apart and all(apart) and not any(together)
    # Their results are added to the sum of the others, not one after another.
    torch.testing.assert_close(logits_of(quantised), logits_of(plain), rtol=1e-4, atol=1e-4)
