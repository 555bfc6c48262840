"""Memory while experts load that are stored as one tensor: a few of them are in memory twice, and not a layer's."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from support.families import FAMILIES, save
from support.launch_check import cuda_device_guard
from weft.models import checkpoint
from weft.models.architectures import read_config
from weft.models.decoder import Decoder
from weft.models.dtypes import with_dtype
from weft.models.in_memory import WeightsInMemory
from weft.models.loading import load_model
from weft.models.matrices import Matrices
from weft.models.mixture import Mixture
from weft.models.stored import DTYPES, stored_tensors
from weft.ops.huge_pages import converted
from weft.ops.packing import MAX_THREADS

EXPERTS = 40
SETTINGS = {
    "gpt_oss": {**FAMILIES["gpt_oss"], "num_experts": EXPERTS},
    "granitemoe": {**FAMILIES["granitemoe"], "num_local_experts": EXPERTS},
}
"""Of families with fused experts, which transformers saves as such."""


def test_parts_of_a_matrix_are_read_at_once() -> None:
    read: list[int] = []

    def noted(index: int) -> Tensor:
        read.append(index)
        return torch.arange(6).view(6, 1) + 10 * index

    evens, odds = Matrices(3, noted).split(slice(0, None, 2), slice(1, None, 2))
    found = [(even.flatten().tolist(), odd.flatten().tolist()) for even, odd in zip(evens, odds, strict=True)]
    assert found == [
        ([10 * n, 10 * n + 2, 10 * n + 4], [10 * n + 1, 10 * n + 3, 10 * n + 5]) for n in range(3)
    ]
    assert read == [0, 1, 2]


@pytest.mark.parametrize("family", SETTINGS)
def test_a_conversion_is_of_one_expert(family: str, tmp_path: Path) -> None:
    """Each is converted once, and is gone after it is packed."""
    save(family, SETTINGS[family], tmp_path)
    fused = [each for each in stored_tensors(tmp_path).values() if len(each.shape) == 3]
    made: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def noted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        assert tensor.dtype is not dtype, "else nothing is converted"
        result = plain(tensor, dtype)
        if tensor.shape in shapes and not tensor.is_meta:
            made.append(weakref.ref(result))
            alive.append(sum(each() is not None for each in made))
        return result

    plain, shapes = converted, {each.shape[1:] for each in fused}
    with patch.object(checkpoint, "converted", noted):
        load_model(tmp_path, dtype="bfloat16")
    assert len(fused) == 2 * 4 and len(made) == EXPERTS * len(fused), "gates and ups, and downs"
    assert max(alive) <= 2 * MAX_THREADS + 3


class Held(FakeTensorMode):
    """Makes tensors without contents, and finds the peak of the bytes in those on CUDA."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        for each in tree_leaves(result):
            if isinstance(each, FakeTensor) and each.fake_device.type == "cuda":
                storage = each.untyped_storage()
                reference = StorageWeakRef(storage)
                self._storages[reference.cdata] = reference, storage.nbytes()
        self.peak = max(self.peak, self.now())
        return result

    def now(self) -> int:
        """The bytes now."""
        self._storages = {key: each for key, each in self._storages.items() if not each[0].expired()}
        return sum(size for _, size in self._storages.values())


@pytest.mark.parametrize("family", SETTINGS)
def test_on_cuda_few_experts_are_in_memory_twice(family: str, tmp_path: Path) -> None:
    save(family, SETTINGS[family], tmp_path)
    model_class, config = read_config(tmp_path)
    config = with_dtype(config, "bfloat16", torch.device("cuda"))
    assert issubclass(model_class, Decoder)
    with cuda_device_guard(), torch.no_grad(), Held() as held:
        tensors = {
            name: torch.empty(each.shape, dtype=DTYPES[each.dtype])
            for name, each in stored_tensors(tmp_path).items()
        }
        source = WeightsInMemory(tensors, config, torch.device("cuda", 0), tmp_path)
        mixture = model_class.make_mlp(config, source, "model.layers.0.", 0)
        kept = held.now()
    assert isinstance(mixture, Mixture)
    packed = 2 * (mixture.experts.up.memory.numel() + mixture.experts.down.memory.numel())
    assert packed < kept
    assert held.peak <= kept + 4 * packed // EXPERTS
