"""The launches of a decoder layer in a decoding iteration on CUDA, counted on fake tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from support.engine.fake_weights import FakeWeights
from support.families import FAMILIES, HYBRIDS, own_families, save
from support.launch_check import cuda_device_guard
from weft.models.base import PagedKV
from weft.models.decoder import Decoder
from weft.models.layers import Attention, DecoderLayer
from weft.models.mixture import Mixture
from weft.models.states import States
from weft.models.weights import read_config, with_dtype
from weft.ops.attention import Rows
from weft.registry import load

MAXIMA = {"dense": 5, "mixture": 8, "other mixer": 7}


class Counter(TorchDispatchMode):
    """Counts operations that launch kernels."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if not (func.is_view or "empty" in name or name.startswith("prim::")):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", own_families())
def test_a_layer_takes_few_launches(family: str, tmp_path: Path) -> None:
    save(family, {**FAMILIES, **HYBRIDS}[family], tmp_path)
    config = with_dtype(read_config(tmp_path)[1], "bfloat16", torch.device("cuda"))
    assert not config.why_generic, config.why_generic
    counts: list[tuple[DecoderLayer, list[str]]] = []
    add_to = DecoderLayer.add_to_

    def counted(layer: DecoderLayer, *args: Any) -> None:
        with Counter() as counter:
            add_to(layer, *args)
        counts.append((layer, counter.names))

    with (
        cuda_device_guard(),
        FakeTensorMode(),
        torch.inference_mode(),
        patch.object(DecoderLayer, "add_to_", counted),
    ):
        model: Decoder = load("models", config.architecture)(config, FakeWeights(tmp_path, config.dtype))
        kv = PagedKV.for_model(model, 9, 4)
        states = None
        if config.has_states:
            kv.states = States(config.layer_memories, 2, 0, 3, False, model.device)
            states = kv.states.rows(torch.zeros(2, dtype=torch.int64, device="cuda"), 2)
        rows = Rows(
            torch.zeros(2, 4, dtype=torch.int32, device="cuda"),
            torch.zeros(2, dtype=torch.int64, device="cuda"),
            4,
            states=states,
        )
        model.forward(torch.zeros(2, 4, dtype=torch.int64, device="cuda"), kv, rows)
    assert len(counts) == config.num_layers
    for layer, names in counts:
        kind = "dense" if isinstance(layer.mixer, Attention) else "other mixer"
        kind = "mixture" if isinstance(layer.mlp, Mixture) else kind
        assert len(names) <= MAXIMA[kind], f"a {kind} layer launches {names}"
