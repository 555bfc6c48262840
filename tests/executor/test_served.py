"""What weft does not serve is held by its classes, and refused with its reason where it would be used."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch

from executor.test_types import CHECKED, make
from support.executor import request, until_final
from weft.errors import InputError
from weft.executor import Executor, ExecutorConfig, Request, types
from weft.executor.types import (
    CacheTransceiverConfig,
    CommunicationMode,
    ContextPhaseParams,
    DecodingConfig,
    DecodingMode,
    EagleConfig,
    ExternalDraftTokensConfig,
    KvCacheConfig,
    KvCacheTransferMode,
    LoraConfig,
    MropeConfig,
    MultimodalInput,
    OrchestratorConfig,
    OutputConfig,
    ParallelConfig,
    PeftCacheConfig,
    PromptTuningConfig,
    RequestType,
    SpeculativeDecodingConfig,
)
from weft.executor.types.refused import NO_EFFECT, OTHERWISE, REFUSED
from weft.executor.types.served import check_served

TABLE = torch.ones(2, 3)
OTHER: dict[str, Any] = {
    "Request.position_ids": [0, 1],
    "Request.prompt_tuning_config": PromptTuningConfig(TABLE),
    "Request.multimodal_input": MultimodalInput([[1]], [0], [1]),
    "Request.multimodal_embedding": TABLE,
    "Request.mrope_config": MropeConfig(TABLE, 1),
    "Request.lora_config": LoraConfig(1),
    "Request.encoder_input_token_ids": [1],
    "Request.type": RequestType.REQUEST_TYPE_CONTEXT_ONLY,
    "Request.context_phase_params": ContextPhaseParams([1], 2),
    "Request.encoder_input_features": TABLE,
    "Request.encoder_output_length": 3,
    "Request.cross_attention_mask": TABLE,
    "Request.eagle_config": EagleConfig(),
    "Request.skip_cross_attn_blocks": TABLE,
    "Request.language_adapter_uid": 1,
    "Request.disagg_request_id": 1,
    "OutputConfig.return_encoder_output": True,
    "ExternalDraftTokensConfig.acceptance_threshold": 0.5,
    "ExternalDraftTokensConfig.fast_logits": True,
    "SpeculativeDecodingConfig.fast_logits": True,
    "KvCacheConfig.cross_kv_cache_fraction": 0.5,
    "KvCacheConfig.use_uvm": True,
    "KvCacheConfig.onboard_blocks": False,
    "KvCacheRetentionConfig.transfer_mode": KvCacheTransferMode.GDS,
    "KvCacheRetentionConfig.directory": "folder",
    "DecodingConfig.medusa_choices": [[0], [0, 1]],
    "DecodingConfig.eagle_config": EagleConfig(),
    "ExecutorConfig.gpu_weights_percent": 0.5,
    "ExecutorConfig.cache_transceiver_config": CacheTransceiverConfig(),
}
"""A value of each refused field that is not its default."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_served_is_held_and_refused_where_it_is_used(name: str) -> None:
    owner, _, key = name.partition(".")
    cls = getattr(types, owner)
    given = OTHER[name]
    for made in (make(cls, **{key: given}), make(cls)):
        setattr(made, key, given)
        assert getattr(made, key) is given or getattr(made, key) == given
        assert key in made.to_dict()
        with pytest.raises(InputError, match=re.escape(f"{name} is not supported: {REFUSED[name]}") + "$"):
            check_served(made)
    assert key not in make(cls).to_dict()
    check_served(make(cls))


def test_the_tables_speak_of_fields() -> None:
    declared = {f"{cls.__name__}.{one.name}" for cls in CHECKED for one in fields(cls)}
    for table in (REFUSED, NO_EFFECT, OTHERWISE):
        assert set(table) <= declared
    assert not set(REFUSED) & set(NO_EFFECT)


PARTS: list[tuple[ExecutorConfig, str]] = [
    (ExecutorConfig(kv_cache_config=KvCacheConfig(use_uvm=True)), "KvCacheConfig.use_uvm"),
    (
        ExecutorConfig(spec_dec_config=SpeculativeDecodingConfig(True)),
        "SpeculativeDecodingConfig.fast_logits",
    ),
    (
        ExecutorConfig(decoding_config=DecodingConfig(eagle_config=EagleConfig())),
        "DecodingConfig.eagle_config",
    ),
    (ExecutorConfig(cache_transceiver_config=CacheTransceiverConfig(5)), "cache_transceiver_config"),
    (ExecutorConfig(parallel_config=ParallelConfig(device_ids=[0, 1])), "ParallelConfig.device_ids"),
    (ExecutorConfig(parallel_config=ParallelConfig(num_nodes=2)), "ParallelConfig.num_nodes"),
    (ExecutorConfig(parallel_config=ParallelConfig(participant_ids=[0, 1])), "participant_ids"),
    (
        ExecutorConfig(parallel_config=ParallelConfig(communication_mode=CommunicationMode.ORCHESTRATOR)),
        "communication_mode",
    ),
    (
        ExecutorConfig(parallel_config=ParallelConfig(orchestrator_config=OrchestratorConfig())),
        "orchestrator_config",
    ),
]


@pytest.mark.parametrize(("config", "name"), PARTS)
def test_an_executor_is_not_made_of_what_is_not_served(config: ExecutorConfig, name: str) -> None:
    with pytest.raises(InputError, match=f"{re.escape(name)} is not supported: "):
        Executor(None, config)


def test_what_changes_nothing_is_taken(make: Callable[..., Executor]) -> None:
    executor = make(
        parallel_config=ParallelConfig(device_ids=[0], participant_ids=[0], num_nodes=1),
        peft_cache_config=PeftCacheConfig(10),
        decoding_config=DecodingConfig(DecodingMode.TopKTopP()),
        spec_dec_config=SpeculativeDecodingConfig(),
        backend="pytorch",
        use_gpu_direct_storage=True,
        recv_poll_period_ms=50,
        mm_embedding_offloading=True,
    )
    (response,) = until_final(executor, executor.enqueue_request(request(2, pad_id=-2)))
    assert len(response.result.output_token_ids[0]) == len(request(2).input_token_ids) + 2


def test_a_request_that_is_not_served_has_an_error_response(executor: Executor) -> None:
    lora = request(5, lora_config=LoraConfig(7))
    drafts = request(5, external_draft_tokens_config=ExternalDraftTokensConfig([1], fast_logits=True))
    encoder = request(5, output_config=OutputConfig(return_encoder_output=True))
    for one, name in (
        (lora, "Request.lora_config"),
        (drafts, "ExternalDraftTokensConfig.fast_logits"),
        (encoder, "OutputConfig.return_encoder_output"),
    ):
        (response,) = until_final(executor, executor.enqueue_request(one))
        assert response.has_error() and f"{name} is not supported: " in response.error_msg


def test_the_number_of_sequences_may_be_said_by_the_request(executor: Executor) -> None:
    assert Request([1], 2, num_return_sequences=3).sampling.num_sequences == 3
    responses = until_final(executor, executor.enqueue_request(request(2, num_return_sequences=2)))
    assert [response.result.sequence_index for response in responses] == [0, 1]
