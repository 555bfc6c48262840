"""The executor on a GPU: the CPU's tokens, however it is scheduled, searched, processed and cancelled."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.engine.drafters import DRAFTERS
from support.engine.drafting_requests import check, run
from support.engine.oracle import Reference
from support.engine.references import Checkpoint
from support.engine.requests import WAYS
from weft import LLM, EngineConfig, Guide, Speculation
from weft.engine.engine import Engine
from weft.executor import (
    Executor,
    ExecutorConfig,
    FinishReason,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    LogitsPostProcessorConfig,
    OutputConfig,
    Request,
    SamplingConfig,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("drafter", ["none", "eagle3", "forced+ngram", "random mtp chain"])
def test_the_way_changes_no_token(
    tiny: Checkpoint,
    prompts: list[str],
    reference: list[Reference],
    random_drafters: Path,
    way: str,
    drafter: str,
) -> None:
    speculation = DRAFTERS[drafter](random_drafters, 3) if drafter != "none" else Speculation.none()
    engine = EngineConfig(max_batch=4, max_seq_len=288, **WAYS[way])
    with LLM(tiny.path, device="cuda", speculation=speculation, engine=engine) as llm:
        for _ in range(2):  # the second time prompts are found
            check(run(llm, prompts), reference)
            check_nothing_is_held(llm.engine)


def check_nothing_is_held(engine: Engine) -> None:
    while engine.has_work:  # the last iteration in flight
        time.sleep(0.001)
    assert engine.kv.usage().used_pages == 0
    engine.kv.check()


def first_out(
    request_id: int, logits: Tensor, tokens: list[list[int]], stream: object, client_id: int | None
) -> None:
    """Forbid the token that was said last."""
    logits[..., tokens[0][-1]] = -torch.inf


def answers(device: str, requests: list[Request], config: dict[str, Any]) -> list[list[list[int]]]:
    with Executor(None, ExecutorConfig(max_batch_size=8, **config), device=device) as executor:
        if "guided_decoding_config" in config:
            executor.register_guide("words", Guide.regex("[a-z]{3}( [a-z]{3}){4}"))
        numbers = executor.enqueue_requests(requests)
        return [executor.await_responses(number)[0].result.output_token_ids for number in numbers]


GUIDED = {"guided_decoding_config": GuidedDecodingConfig()}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "beams": ({"max_beam_width": 4, "graphs": "split"}, {"sampling_config": SamplingConfig(4)}),
    "guided beams": (
        {"max_beam_width": 4, "graphs": "split", **GUIDED},
        {
            "sampling_config": SamplingConfig(4),
            "guided_decoding_params": GuidedDecodingParams.handle("words"),
        },
    ),
    "processed": (
        {
            "logits_post_processor_config": LogitsPostProcessorConfig({"first out": first_out}),
            "speculation": Speculation.eagle3(num_draft_tokens=3),
        },
        {"logits_post_processor_name": "first out"},
    ),
    "gathered": (
        {"gather_generation_logits": True},
        {"output_config": OutputConfig(return_generation_logits=True, return_context_logits=True)},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_requests_of_every_kind_have_the_cpus_tokens(tiny: Checkpoint, prompts: list[str], kind: str) -> None:
    config, wishes = KINDS[kind]
    requests = [Request(tiny.tokenizer.encode(prompt), 24, **wishes) for prompt in prompts[:6]]
    on_cpu, on_gpu = (answers(device, requests, config) for device in ("cpu", "cuda"))
    assert sum(a == b for a, b in zip(on_cpu, on_gpu, strict=True)) >= len(requests) - 1


def test_cancelled_in_flight() -> None:
    with Executor(None, ExecutorConfig(max_batch_size=4), device="cuda") as executor:
        numbers = executor.enqueue_requests([Request([0, 292, 28], 2000, end_id=-1) for _ in range(8)])
        for number in numbers[::2]:
            executor.cancel_request(number)
        for number in numbers[::2]:
            result = executor.await_responses(number)[0].result
            assert result.finish_reasons == [FinishReason.CANCELLED]
        for number in numbers[1::2]:
            assert executor.await_responses(number)[0].result.finish_reasons == [FinishReason.LENGTH]
        check_nothing_is_held(executor.client.engine)
