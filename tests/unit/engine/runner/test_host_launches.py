"""How many launches the host makes on CUDA to read a prompt: counted on fake tensors."""

from __future__ import annotations

from support.engine.host_launches import prompt_launches
from support.kernels.interpreter import needs_triton
from weft_bench.engine.models import Shape

SHAPE = Shape(layers=4, hidden=256, vocab=2048, draft_vocab=1024)
TOKENS = 256

pytestmark = needs_triton


def launched(step_tokens: int | None, num_drafts: int = 0) -> int:
    counts = prompt_launches(SHAPE, TOKENS, step_tokens, num_drafts)
    return sum(count for kind, count in counts.items() if kind != "steps")


def test_a_layer_is_few_launches_and_a_head_is_another_layer() -> None:
    plain = launched(None)
    assert 0 < plain <= 9 * SHAPE.layers + 24
    assert plain <= launched(None, num_drafts=3) <= plain + 24


def test_each_part_of_a_prompt_is_launched() -> None:
    counts = [prompt_launches(SHAPE, TOKENS, limit, 0) for limit in (TOKENS, TOKENS // 4)]
    assert counts[1]["steps"] == counts[0]["steps"] + 3
    assert counts[1]["kernels"] + counts[1]["graphs"] > counts[0]["kernels"] + counts[0]["graphs"]
