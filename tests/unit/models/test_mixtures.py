"""Mixtures of experts: which configs weft's modules run, and what a router gives on CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import transformers
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from support.activations import activations_of
from support.families import FAMILIES, save
from support.launch_check import cuda_device_guard
from weft.client.model_facts import ModelFacts, experts_line, fact_lines
from weft.models import mixture
from weft.models.architectures import parse_config
from weft.models.config import ModelConfig
from weft.models.matrices import Matrices
from weft.models.residual import Residual
from weft.ops.formats import Activations
from weft.ops.linear import Linear, Norm
from weft.ops.packing import PackingThreads
from weft.ops.routing import Chosen, choose


def parsed(name: str, **changes: Any) -> ModelConfig:
    """The config of an architecture: transformers' defaults with `changes`."""
    cls = getattr(transformers, f"{name}ForCausalLM")
    data = {**cls.config_class().to_dict(), "architectures": [cls.__name__], "dtype": "bfloat16"}
    return parse_config({**data, **changes}, "config.json")[1]


WINDOWS = {"use_sliding_window": True, "sliding_window": 64, "layer_types": None}


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("Qwen2Moe", {"shared_expert_intermediate_size": 2000}, "'moe_intermediate_size', which is 1408"),
        ("Qwen2Moe", WINDOWS, "'layer_types' does not name"),
        ("Olmoe", {"clip_qkv": 8.0}, "'clip_qkv' is 8.0; weft runs models without it"),
    ],
)
def test_other_mixtures_run_by_transformers_code(name: str, changes: dict[str, Any], reason: str) -> None:
    assert parsed(name).why_generic == ""
    assert reason in parsed(name, **changes).why_generic


def test_shared_experts_are_as_wide_as_the_routed_ones() -> None:
    """The published shape of Qwen1.5-MoE: one MLP of 5632 beside experts of 1408."""
    found = parsed("Qwen2Moe").mixture
    assert found is not None
    assert (found.choice.num_shared, found.choice.shared_gate, found.intermediate_size) == (4, True, 1408)


@pytest.mark.parametrize(
    ("family", "count", "line"),
    [
        ("qwen3_moe", 4, "experts: 6 in 3 of 4 layers, 2 for each token"),
        ("qwen2_moe", 4, "experts: 6 and 2 shared in 3 of 4 layers, 2 and 2 shared for each token"),
        ("gpt_oss", 4, "experts: 6 in 4 of 4 layers, 2 for each token"),
    ],
)
def test_inspection_shows_experts(family: str, count: int, line: str, tmp_path: Path) -> None:
    changes = {"mlp_only_layers": [1], "shared_expert_intermediate_size": 48} if "qwen" in family else {}
    network = save(family, {**FAMILIES[family], **changes}, tmp_path)
    facts = ModelFacts.read(tmp_path, torch.device("cpu"))
    idle = sum(
        each.numel() * count // 6 for name, each in network.named_parameters() if ".mlp.experts." in name
    )
    assert facts.active_parameters == facts.headers.num_parameters - idle
    assert line in experts_line(facts)
    assert any(line in each for each in fact_lines(facts, 10**9))


def test_logits_of_routers_are_not_rounded_on_cuda() -> None:
    config = parsed("Qwen2Moe", num_experts=3, hidden_size=64, moe_intermediate_size=32)
    dtypes = []

    class Weights:
        def take_matrix(self, name: str, *shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.bfloat16, device="cuda")

        take_dense = take_matrix

        def take_in_order(self, names: Sequence[str], *shape: int) -> Matrices:
            return Matrices(len(names), lambda index: self.take_matrix(names[index], *shape))

        def __contains__(self, name: str) -> bool:
            return False

    def noted(logits: Tensor, *args: Any) -> Chosen:
        dtypes.append((logits.dtype, logits.shape[1]))
        return choose(logits, *args)

    with (
        cuda_device_guard(),
        FakeTensorMode(),
        torch.inference_mode(),
        patch.object(mixture, "choose", noted),
    ):
        assert config.mixture is not None
        layer = mixture.load_mixture(config, config.mixture, Weights(), "")  # type: ignore[arg-type]
        x = torch.empty(5, 64, dtype=torch.bfloat16, device="cuda")
        norm = Norm(torch.empty(64, dtype=torch.bfloat16, device="cuda"), 1e-6)
        layer.add_to_(Residual(x, None), norm, None)
    assert dtypes == [(torch.float32, 4)]


def test_routers_do_not_round_activations() -> None:
    """That could change the choice."""
    weight = torch.randn(64, 32).bfloat16()
    with PackingThreads(Activations.BFLOAT16):
        assert activations_of(Linear(weight)) == [Activations.BFLOAT16]
        assert activations_of(mixture.make_router([weight])) == [Activations.FLOAT32]
