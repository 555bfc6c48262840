"""Converts an `ExecutorConfig` to the settings of the engine and its client."""

from __future__ import annotations

from typing import Any, Literal

from weft.client.capacity import ClientLimits
from weft.config import EngineConfig, Lookahead, ResolvedConfig, Speculation
from weft.errors import InputError
from weft.executor.types import (
    CapacitySchedulerPolicy,
    ContextChunkingPolicy,
    DynamicBatchConfig,
    ExecutorConfig,
    LookaheadDecodingConfig,
)

POLICIES: dict[CapacitySchedulerPolicy, Any] = {
    CapacitySchedulerPolicy.MAX_UTILIZATION: "max_utilization",
    CapacitySchedulerPolicy.GUARANTEED_NO_EVICT: "guaranteed_no_evict",
    CapacitySchedulerPolicy.STATIC_BATCH: "static_batch",
}
CHUNKING: dict[ContextChunkingPolicy | None, Any] = {
    None: "first_come",
    ContextChunkingPolicy.FIRST_COME_FIRST_SERVED: "first_come",
    ContextChunkingPolicy.EQUAL_PROGRESS: "equal_progress",
}


def engine_config(config: ExecutorConfig) -> EngineConfig:
    """Convert the executor's settings to the engine's."""
    cache, guided = config.kv_cache_config, config.guided_decoding_config
    tuning = config.scheduler_config.dynamic_batch_config or DynamicBatchConfig()
    page_size = cache.tokens_per_block
    # Add one page, because the first page is reserved for padding.
    pages = None if cache.max_tokens is None else 1 + -(-cache.max_tokens // page_size)
    return EngineConfig(
        max_batch=config.max_batch_size if config.max_batch_size is not None else EngineConfig.max_batch,
        max_beam_width=config.max_beam_width,
        max_seq_len=config.max_seq_len,
        whole_context=True,
        page_size=page_size,
        num_pages=pages,
        max_num_tokens=config.max_num_tokens,
        policy=POLICIES[config.policy],
        chunking=CHUNKING[config.scheduler_config.context_chunking_policy],
        chunked=config.enable_chunked_context,
        max_idle_s=config.max_seq_idle_microseconds / 1e6,
        tunes_batch=tuning.enable_batch_size_tuning,
        tunes_tokens=tuning.enable_max_num_tokens_tuning,
        tuning_window=tuning.dynamic_batch_moving_average_window,
        overlap=_overlap(config),
        reuse=cache.enable_block_reuse,
        partial_reuse=cache.enable_partial_reuse,
        copy_on_partial_reuse=cache.copy_on_partial_reuse,
        kv_memory_fraction=_memory_fraction(config),
        kv_max_bytes=cache.max_gpu_total_bytes or None,
        kv_cache_dtype=cache.kv_cache_dtype,
        host_cache_bytes=cache.host_cache_size or 0,
        secondary_offload_min_priority=(
            EngineConfig.secondary_offload_min_priority
            if cache.secondary_offload_min_priority is None
            else cache.secondary_offload_min_priority
        ),
        kv_event_buffer=cache.event_buffer_max_size,
        attention_windows=tuple(cache.max_attention_window or ()),
        sink_tokens=cache.sink_token_length or 0,
        logprobs="normalized" if config.normalize_log_probs else "sampled",
        activation_dtype=config.activation_dtype,
        graphs=config.graphs,
        host_tasks=config.host_tasks,
        gather_generation_logits=config.gather_generation_logits,
        additional_outputs=tuple(
            (output.name, output.gather_context) for output in config.additional_model_outputs or ()
        ),
        mask_time_limit_s=guided.mask_time_limit_s if guided is not None else None,
        untrusted_guides=guided is not None and guided.untrusted,
        programs_ahead=guided.programs_ahead if guided is not None else None,
        max_program_bytes=guided.max_program_bytes if guided is not None else None,
        grammar=EngineConfig.grammar if guided is None else guided.backend.name.lower(),
        max_words=config.max_words,
        max_word_bytes=config.max_word_bytes,
    )


def check_room(config: ExecutorConfig, made: ResolvedConfig, num_draft_tokens: int) -> None:
    """With `fail_fast_on_attention_window_too_large`, raise `InputError` if the cache can't hold a text of
    `max_seq_len` tokens. `made` is the engine's config. Without the option, only requests that are too long are
    refused."""
    needed = made.pages_for(made.max_seq_len, num_draft_tokens)
    if config.fail_fast_on_attention_window_too_large and needed > made.num_pages - 1:
        raise InputError(
            f"the cache has {made.num_pages - 1} blocks of {made.page_size} tokens, and a text of max_seq_len, "
            f"{made.max_seq_len}, tokens needs {needed}: make KvCacheConfig.max_tokens at least "
            f"{needed * made.page_size}, lower ExecutorConfig.max_seq_len, or leave out "
            "fail_fast_on_attention_window_too_large: then only requests that are too long are refused"
        )


DEFAULT_MEMORY_FRACTION = 0.9


def _memory_fraction(config: ExecutorConfig) -> float | None:
    """The share of the free memory that the cache may take; None: no such limit."""
    # Without these limits the cache would be sized for every slot at the model's full length, which may exceed the
    # memory. The default is TensorRT-LLM's.
    cache = config.kv_cache_config
    if cache.free_gpu_memory_fraction is None and cache.max_tokens is None and config.max_seq_len is None:
        return DEFAULT_MEMORY_FRACTION
    return cache.free_gpu_memory_fraction


def _overlap(config: ExecutorConfig) -> bool | Literal["auto"]:
    """The engine's `overlap`: whether an iteration may be launched before the host has read the previous one."""
    # Debug tensors are taken from one iteration at a time.
    if config.debug_config is not None:
        return False
    return True if config.enable_trt_overlap and config.overlap == "auto" else config.overlap


def speculation(config: ExecutorConfig) -> Speculation:
    """The executor's speculation: weft's setting if there is one, else lookahead as the decoding config sets it."""
    if config.speculation is not None:
        return config.speculation
    sizes = config.decoding_config.lookahead_decoding_config if config.decoding_config is not None else None
    if sizes is None:
        return Speculation.none()
    own = lookahead(sizes)
    return Speculation.lookahead(own.window, own.ngram, own.verification)


def lookahead(sizes: LookaheadDecodingConfig) -> Lookahead:
    """Convert TensorRT-LLM's sizes for lookahead decoding to weft's."""
    return Lookahead(sizes.max_window_size, sizes.max_ngram_size, sizes.max_verification_set_size)


def client_limits(config: ExecutorConfig) -> ClientLimits:
    """The client's limits on requests."""
    return ClientLimits(
        max_sequences=config.max_return_sequences,
        max_queue_size=config.queue_size,
        max_pending_bytes=config.max_pending_bytes,
        max_unread_responses=config.max_unread_responses,
        max_unread_bytes=config.max_unread_bytes,
    )
