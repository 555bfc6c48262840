"""Every function that the engine launches behaves alike at capture and at replay, on fake CUDA tensors and in recordings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation
from weft.engine.prefill import PromptRow
from weft.errors import GraphError
from weft.runtime import cpu
from weft.runtime.launch_check import check_launched

Launch = tuple[Callable[..., None], tuple[Any, ...]]


def name(fn: Callable[..., None]) -> str:
    return getattr(fn, "__qualname__", type(fn).__qualname__)


@pytest.fixture(scope="module")
def launches() -> tuple[LLM, list[Launch]]:
    """What a guided and an unguided answer launch, prefill and every kind of iteration, each function and shape once."""
    found: list[Launch] = []
    original = cpu.Stream.launch

    def launch(self: cpu.Stream, fn: Callable[..., None], *args: Any) -> None:
        found.append((fn, args))
        original(self, fn, *args)

    cpu.Stream.launch = launch  # type: ignore[method-assign]
    try:
        llm = LLM(device="cpu", speculation=Speculation.eagle3(), engine=EngineConfig(max_batch=2, prefill_chunk=8))
        sampling = SamplingParams(max_tokens=6, temperature=0.7, seed=1)
        llm.generate(["Text: a\nSchema: ", "Text: b\nSchema: {"], guide=[Guide.json(), None], sampling=sampling)
        llm.generate("Text: c", sampling=sampling)
    finally:
        cpu.Stream.launch = original  # type: ignore[method-assign]
    return llm, found


def test_every_launched_function_keeps_the_rule(launches: tuple[LLM, list[Launch]]) -> None:
    llm, found = launches
    lane = llm.engine.lane
    host = [value for key, value in vars(lane).items() if key.endswith("_host") and isinstance(value, torch.Tensor)]
    assert host, "the lane's pinned buffers are named *_host"
    checked: dict[str, int] = {}
    for fn, args in found:
        rows = [a for a in args if isinstance(a, PromptRow)]
        if checked.get(name(fn), 0) >= 6:
            continue
        with torch.inference_mode():
            check_launched(fn, *args, host=[*host, *(t for r in rows for t in (r.tokens, r.pages))])
        checked[name(fn)] = checked.get(name(fn), 0) + 1
    for expected in ("target_forward", "sample_and_verify", "draft_forward", "pick_draft", "read_chunk", "sample_first"):
        assert expected in checked
    llm.close()


def test_a_function_that_breaks_the_rule_is_caught() -> None:
    x = torch.ones(3)

    def reads_a_value(t: torch.Tensor) -> None:
        t.mul_(float(t.sum()))

    with pytest.raises(GraphError):
        check_launched(reads_a_value, x)
