"""How many kernels an iteration of an 8B model is on CUDA: counted on fake tensors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from support.engine.nodes import CountingRuntime, CountingStream, Nodes, fake_parts, real_host_memory
from support.kernels.interpreter import needs_triton
from support.kernels.launches import launches
from weft.engine.device.state import StepBuffers
from weft.engine.runner.step import GuidedLogits, Iteration, Plan, decode_step
from weft.guided.grammar_stream import GrammarStream
from weft.guided.state import GuidedShape
from weft.ops.latent import LatentQueries
from weft.ops.linear import Norm
from weft_bench.engine.models import SHAPES, Shape


def count_nodes(shape: Shape, num_drafts: int, guides: GuidedLogits, batch: int = 1) -> tuple[Nodes, Nodes]:
    """What an iteration of EAGLE3 with so many drafts gives to the model's stream, and what to the grammar's."""
    with launches() as found, real_host_memory():
        runtime: Any = CountingRuntime(found)
        grammar = GrammarStream(runtime, GuidedShape(batch, max(num_drafts, 1), shape.vocab, [2]))
        stream = runtime.stream()
        parts = fake_parts(shape, grammar, num_drafts, batch)
        slots_B = torch.zeros(batch, dtype=torch.int64, device="cuda")
        buffers = StepBuffers.allocate(slots_B, num_drafts + 1, parts.model, parts.state, parts.drafter)
        iteration = Iteration(Plan(batch, num_drafts, guides), stream, grammar, parts, buffers)
        decode_step(iteration)  # as before a capture
        stream.nodes = Nodes()
        grammar.stream.nodes = Nodes()  # type: ignore[attr-defined]
        decode_step(iteration)
    return stream.nodes, grammar.stream.nodes  # type: ignore[attr-defined]


SHAPE = SHAPES["llama-8b-eagle3"]
OF_A_LAYER = 5
BESIDE_LAYERS = 8
OF_A_DRAFT = 11

pytestmark = needs_triton


def limit(num_drafts: int) -> int:
    return OF_A_LAYER * SHAPE.layers + BESIDE_LAYERS + OF_A_DRAFT * num_drafts


def described(*streams: Nodes) -> str:
    return " | ".join(f"{dict(nodes.kernels)}, {nodes.copies} copies" for nodes in streams)


@pytest.mark.parametrize(
    ("num_drafts", "guides"), [(0, GuidedLogits.NONE), (0, GuidedLogits.TARGET), (3, GuidedLogits.DRAFTS)]
)
@pytest.mark.parametrize("batch", [1, 4])
def test_an_iteration_is_few_kernels(num_drafts: int, guides: GuidedLogits, batch: int) -> None:
    model, grammar = count_nodes(SHAPE, num_drafts, guides, batch)
    assert model.num_kernels + grammar.num_kernels <= limit(num_drafts), described(model, grammar)
    assert not model.copies and not [name for name in model.kernels if name.startswith("torch")], (
        f"they wait for each other: {described(model)}"
    )


def test_the_page_has_these_numbers() -> None:
    """Of the GPU's status."""
    page = (Path(__file__).parents[4] / "docs" / "gpu-status.md").read_text()
    said = re.search(r"shape of Llama 3\.1 8B: (\d+), with three guided drafts (\d+) ", page)
    assert said is not None
    plain, _ = count_nodes(SHAPE, 0, GuidedLogits.NONE)
    model, grammar = count_nodes(SHAPE, 3, GuidedLogits.DRAFTS)
    assert [int(number) for number in said.groups()] == [
        plain.num_kernels,
        model.num_kernels + grammar.num_kernels,
    ]


def test_a_layer_is_five_kernels() -> None:
    model, _ = count_nodes(SHAPE, 0, GuidedLogits.NONE)
    assert model.kernels["attend_few_kernel"] == SHAPE.layers
    assert model.kernels["linear_kernel"] == 4 * SHAPE.layers + 1  # and the logits


def test_a_large_batch_takes_torchs_products() -> None:
    """Of more rows than one kernel takes: norms, products and SwiGLU are kernels of their own."""
    model, _ = count_nodes(SHAPE, 0, GuidedLogits.NONE, batch=32)
    assert model.kernels["linear_kernel"] == 0
    assert model.kernels["torch mm"] + model.kernels["torch addmm"] == 4 * SHAPE.layers + 1
    assert model.kernels["activate_kernel"] == SHAPE.layers
    assert model.kernels["attend_few_kernel"] == SHAPE.layers


@pytest.mark.parametrize("query", [0, 1536])
def test_latent_queries_are_one_kernel(query: int) -> None:
    """For few rows. For many, torch multiplies compressed queries first."""

    def tensor(*sizes: int) -> torch.Tensor:
        return torch.empty(sizes, dtype=torch.bfloat16, device="cuda")

    heads, plain, rotated, latent = 16, 128, 64, 512
    with launches() as found:
        q_up, q_norm = (
            (tensor(heads * (plain + rotated), query), Norm(tensor(query), 1e-6)) if query else (None, None)
        )
        queries = LatentQueries(
            q_up, tensor(heads, plain, latent), q_norm, Norm(tensor(latent), 1e-6), rotated
        )
        few, many = CountingStream(found), CountingStream(found)
        width = (query or heads * (plain + rotated)) + latent + rotated
        # The first launch makes counters.
        CountingStream(found).launch(queries, tensor(16, width))
        few.launch(queries, tensor(16, width))
        many.launch(queries, tensor(17, width))
    assert few.nodes.kernels == {"latent_up_queries_kernel" if query else "latent_queries_kernel": 1}
    assert many.nodes.kernels["latent_queries_kernel"] == 1
    assert many.nodes.kernels["torch mm"] == bool(query)
