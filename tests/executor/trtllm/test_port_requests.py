"""Ported: requests and what goes into them read back what they were given."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch

import weft.executor as trtllm
from support.trtllm import PROMPT, reads


def full_request(**fields: Any) -> dict[str, Any]:
    """Arguments for `Request`: those of its older fields that can be compared or looked into."""
    return {
        "input_token_ids": [1, 2, 3],
        "max_tokens": 1,
        "streaming": False,
        "sampling_config": trtllm.SamplingConfig(),
        "output_config": trtllm.OutputConfig(),
        "end_id": -1,
        "pad_id": -2,
        "bad_words": [[4, 5, 6]],
        "stop_words": [[7, 8, 9]],
        "embedding_bias": torch.ones(1),
        "external_draft_tokens_config": trtllm.ExternalDraftTokensConfig([1, 2, 3]),
        "prompt_tuning_config": trtllm.PromptTuningConfig(torch.ones(100, 64)),
        "lora_config": trtllm.LoraConfig(1),
        "logits_post_processor_name": "my_logits_pp",
        "client_id": 1234,
        **fields,
    }


def test_output_config() -> None:
    defaults = dict.fromkeys(
        (
            "return_log_probs",
            "return_context_logits",
            "return_generation_logits",
            "exclude_input_from_output",
            "return_encoder_output",
            "return_perf_metrics",
        ),
        False,
    )
    reads(trtllm.OutputConfig(), **defaults, additional_model_outputs=None)
    outputs = [trtllm.AdditionalModelOutput("topKLogits", True)]
    config = trtllm.OutputConfig(True, False, True, False, True, False, outputs)
    chosen = ("return_log_probs", "return_generation_logits", "return_encoder_output")
    reads(config, **{**defaults, **dict.fromkeys(chosen, True)})
    (output,) = config.additional_model_outputs
    reads(output, name="topKLogits", gather_context=True)


def test_prompt_tuning_config() -> None:
    table = torch.ones(100, 64)
    reads(trtllm.PromptTuningConfig(table), embedding_table=table)


@pytest.mark.parametrize("kind", ["ones", "random", "small"])
def test_multimodal_embedding(kind: str) -> None:
    made = {
        "ones": lambda: torch.ones(576, 1024),
        "random": lambda: torch.randn(576, 1024),
        "small": lambda: torch.ones(10, 20),
    }
    embedding = made[kind]()
    request = trtllm.Request(**full_request(multimodal_embedding=embedding))
    reads(request, multimodal_embedding=embedding)


def test_multimodal_input() -> None:
    hashes, positions, lengths = [[1, 2, 3], [4, 5, 6]], [1, 2, 3], [4, 5, 6]
    reads(
        trtllm.MultimodalInput(hashes, positions, lengths),
        multimodal_hashes=hashes,
        multimodal_positions=positions,
        multimodal_lengths=lengths,
    )


def test_mrope_config() -> None:
    rotary, deltas = torch.ones(1, 4194304), torch.tensor([-50])
    config = trtllm.MropeConfig(rotary, deltas)
    reads(config, mrope_rotary_cos_sin=rotary, mrope_position_deltas=deltas)


def test_lora_config() -> None:
    reads(trtllm.LoraConfig(1), task_id=1, weights=None, config=None)
    weights, config = torch.ones(1, 2), torch.ones(1, 2, dtype=torch.int32)
    reads(trtllm.LoraConfig(2, weights, config), task_id=2, weights=weights, config=config)


def test_request() -> None:
    given = full_request(multimodal_embedding=torch.ones(100, 64))
    request = trtllm.Request(**given)
    reads(request, **{name: value for name, value in given.items() if "config" not in name})
    for name in given:
        if "config" in name:
            assert isinstance(getattr(request, name), type(given[name])), name
    reads(request.external_draft_tokens_config, tokens=[1, 2, 3])
    reads(request.prompt_tuning_config, embedding_table=torch.ones(100, 64))


def test_spec_dec_fast_logits_info() -> None:
    info = trtllm.SpeculativeDecodingFastLogitsInfo()
    given: dict[str, Any] = {"draft_request_id": 3, "draft_participant_id": 5}
    for name, value in given.items():
        setattr(info, name, value)
    reads(info, **given)


def test_return_full_tokens() -> None:
    request = trtllm.Request(PROMPT, max_tokens=5, streaming=False, sampling_config=trtllm.SamplingConfig())
    for wanted in (True, False):
        request.return_all_generated_tokens = wanted
        assert request.return_all_generated_tokens is wanted


def test_allotted_time_ms() -> None:
    request = trtllm.Request(PROMPT, max_tokens=5)
    request.allotted_time_ms = timedelta(milliseconds=2)
    reads(request, allotted_time_ms=timedelta(milliseconds=2))
