"""The kernels of a decoder layer in a decoding iteration on CUDA, counted on fake tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from support.engine.fake_weights import FakeWeights
from support.engine.nodes import CountingStream, Nodes
from support.families import FAMILIES, HYBRIDS, own_families, save
from support.kernels.interpreter import needs_triton
from support.kernels.launches import launches
from weft.models.architectures import read_config
from weft.models.base import PagedKV
from weft.models.decoder import Decoder
from weft.models.dtypes import with_dtype
from weft.models.layers import DecoderLayer
from weft.models.states import States
from weft.ops.attention import Rows
from weft.ops.formats import Format
from weft.registry import load

MAXIMA = {"Attention": 3, "LatentAttention": 5, "GatedDelta": 6, "MLP": 2, "Mixture": 5}
"""The kernels of a layer's two parts: 5 in a layer with attention and an MLP, 8 with attention and a mixture."""
QUANTISED = MAXIMA | {"LatentAttention": 6, "GatedDelta": 7}
"""The same of quantised weights. The two products of compressed queries are not one kernel. Projections of Qwen3-Next
have a dense part, which takes a kernel."""


@needs_triton
@pytest.mark.parametrize("format", [None, Format.Q4_1], ids=["dense", "quantised"])
@pytest.mark.parametrize("family", own_families())
def test_a_layer_takes_few_kernels(family: str, format: Format | None, tmp_path: Path) -> None:
    if format is not None and family == "gpt_oss":
        pytest.skip("its projections are quantised in MXFP4 files alone, which these weights are not")
    save(family, {**FAMILIES, **HYBRIDS}[family], tmp_path)
    config = with_dtype(read_config(tmp_path)[1], "bfloat16", torch.device("cuda"))
    assert not config.why_generic, config.why_generic
    counts: list[tuple[DecoderLayer, Nodes]] = []
    add_to = DecoderLayer.add_to_

    def counted(layer: DecoderLayer, *args: Any) -> None:
        stream = CountingStream(found)
        stream.launch(add_to, layer, *args)
        counts.append((layer, stream.nodes))

    with launches() as found, torch.inference_mode(), patch.object(DecoderLayer, "add_to_", counted):
        model: Decoder = load("models", config.architecture)(
            config, FakeWeights(tmp_path, config.dtype, format)
        )
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
    for layer, nodes in counts:
        kinds = [type(part).__name__ for part in (layer.mixer, layer.mlp)]
        maxima = MAXIMA if format is None else QUANTISED
        assert nodes.num_kernels <= sum(maxima[kind] for kind in kinds), (
            f"{kinds} launch {dict(nodes.kernels)}"
        )
        assert not nodes.copies
