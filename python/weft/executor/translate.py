"""What the public classes say, in the engine's words."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from weft.config import EngineConfig, Speculation
from weft.core import SamplingParams
from weft.engine.beam.request import BeamRequest
from weft.engine.beam.search import BeamParams
from weft.engine.device.tensors import Gather
from weft.engine.kv.retention import Retention, RetentionRange
from weft.engine.processors.base import LogitsProcessor
from weft.engine.request import Request as EngineRequest
from weft.errors import InputError
from weft.executor.guides import Guides
from weft.executor.types import (
    CapacitySchedulerPolicy,
    ContextChunkingPolicy,
    ExecutorConfig,
    GuidedDecodingBackend,
    KvCacheRetentionConfig,
    Request,
    SamplingConfig,
)
from weft.executor.words import Words
from weft.grammar.base import Opening

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
GRAMMARS: dict[GuidedDecodingBackend, Any] = {
    GuidedDecodingBackend.XGRAMMAR: "xgrammar",
    GuidedDecodingBackend.LLGUIDANCE: "llguidance",
    GuidedDecodingBackend.AUTO: "auto",
}


OWN_PROCESSOR = "logits_post_processor"
"""What errors call a request's own function."""


def engine_config(config: ExecutorConfig) -> EngineConfig:
    """The sizes and policies of the executor's engine."""
    cache, guided = config.kv_cache_config, config.guided_decoding_config
    page_size = cache.tokens_per_block
    # One page more: the first is the padding's.
    pages = None if cache.max_tokens is None else 1 + -(-cache.max_tokens // page_size)
    return EngineConfig(
        max_batch=config.max_batch_size if config.max_batch_size is not None else EngineConfig.max_batch,
        max_beam_width=config.max_beam_width,
        max_seq_len=config.max_seq_len,
        page_size=page_size,
        num_pages=pages,
        max_num_tokens=config.max_num_tokens,
        policy=POLICIES[config.policy],
        chunking=CHUNKING[config.scheduler_config.context_chunking_policy],
        chunked=config.enable_chunked_context,
        max_idle_s=config.max_seq_idle_microseconds / 1e6,
        overlap=config.overlap,
        reuse=cache.enable_block_reuse,
        partial_reuse=cache.enable_partial_reuse,
        copy_on_partial_reuse=cache.copy_on_partial_reuse,
        graphs=config.graphs,
        gather_generation_logits=config.gather_generation_logits,
        additional_outputs=tuple(
            (output.name, output.gather_context) for output in config.additional_model_outputs
        ),
        mask_time_limit_s=guided.mask_time_limit_s if guided is not None else None,
        untrusted_guides=guided is not None and guided.untrusted,
        programs_ahead=guided.programs_ahead if guided is not None else None,
        max_program_bytes=guided.max_program_bytes if guided is not None else None,
        grammar=EngineConfig.grammar if guided is None else GRAMMARS[guided.backend],
        max_words=config.max_words,
        max_word_bytes=config.max_word_bytes,
    )


def speculation(config: ExecutorConfig) -> Speculation:
    """How the executor drafts."""
    return config.spec_dec_config.speculation if config.spec_dec_config is not None else Speculation.none()


@dataclass(frozen=True)
class Translator:
    """Makes an engine's requests of an executor's. Raises `InputError` for what this executor can't do."""

    config: ExecutorConfig
    words: Words
    guides: Guides

    def engine_requests(self, number: int, request: Request) -> list[EngineRequest]:
        """One for each sequence, numbered from `number` on; of a search by beams, one for all."""
        prompt = self.words.ids("input_token_ids", request.input_token_ids)
        self._refuse(request)
        for name in ("bad_words", "stop_words"):
            self.words.check_words(name, getattr(request, name) or ())
        sampling, end_ids = self._sampling(request), self._end_ids(request)
        rules = self.words.rules(sampling, end_ids, request.embedding_bias)
        params = request.guided_decoding_params
        count = request.sampling_config.num_requests
        opening, closes = Opening(prompt), sampling.on_length == "close"
        guide = None if params is None else self.guides.future(params, opening, closes, request.client_id)
        chosen = request.sampling_config.seed
        seed = chosen if chosen is not None else secrets.randbits(63)
        allotted = request.allotted_s
        stop_words = self.words.stop_words("stop_words", request.stop_words or ())
        make = engine_request(request.sampling_config)
        return [
            make(
                list(prompt),
                sampling,
                wrapped(seed + index),
                rules,
                stop_words(),
                guide,
                priority=request.priority,
                deadline=None if allotted is None else time.perf_counter() + allotted,
                max_drafts=request.num_draft_tokens,
                end_ids=end_ids,
                client=request.client_id,
                processor=self._processor(number, request),
                id=number + index,
                **self._extras(request),
            )
            for index in range(count)
        ]

    def _sampling(self, request: Request) -> SamplingParams:
        output = request.output_config
        return SamplingParams(
            max_tokens=request.max_tokens,
            bad_words=request.bad_words or (),
            stop=[word for word in request.stop_words or () if isinstance(word, str)],
            logprobs=output.top_log_probs if output.return_log_probs else None,
            **request.sampling_config.parameters(),
        )

    def _end_ids(self, request: Request) -> frozenset[int] | None:
        """The tokens that end the answer; None for the model's own."""
        end = request.end_id
        if end is None:
            return None
        if request.guided_decoding_params is not None:
            if end in self.words.end_ids:
                return None
            raise InputError(
                f"end_id is {end}, but a guided answer ends with the model's own end token "
                f"({', '.join(map(str, self.words.end_ids))}); leave end_id out"
            )
        if end >= 0:
            self.words.check("end_id", [end])
        return frozenset({end} if end >= 0 else ())

    def _extras(self, request: Request) -> dict[str, Any]:
        """Fields of the engine's request that few requests set."""
        extras: dict[str, Any] = {}
        output, retention = request.output_config, request.kv_cache_retention_config
        named = output.additional_model_outputs
        if request.external_draft_tokens_config is not None:
            extras["given"] = self.words.drafts(request.external_draft_tokens_config.tokens)
        if output.return_context_logits or output.return_generation_logits or named:
            extras["gather"] = Gather(
                context_logits=output.return_context_logits,
                generation_logits=output.return_generation_logits,
                names=tuple(entry.name for entry in named),
                context_names=tuple(entry.name for entry in named if entry.gather_context),
            )
        if retention is not None:
            extras["retention"] = kept(retention)
        return extras

    def _processor(self, number: int, request: Request) -> LogitsProcessor | None:
        """What acts on the request's logits; it is told the request's own number, also of siblings."""
        config, name = self.config.logits_post_processor_config, request.logits_post_processor_name
        if request.logits_post_processor is not None:
            function, is_batched = request.logits_post_processor, False
        elif name is None:
            return None
        elif name == Request.BATCHED_POST_PROCESSOR_NAME:
            if config is None or config.processor_batched is None:
                raise InputError(
                    f"the logits post-processor {name!r} is LogitsPostProcessorConfig.processor_batched, which this "
                    "executor was made without"
                )
            function, is_batched = config.processor_batched, True
        else:
            known = (config.processor_map if config is not None else None) or {}
            if name not in known:
                raise InputError(
                    f"there is no logits post-processor {name!r}; this executor has {', '.join(known) or 'none'}: name "
                    "it in LogitsPostProcessorConfig.processor_map"
                )
            function, is_batched = known[name], False
        return LogitsProcessor(name or OWN_PROCESSOR, function, is_batched, number, request.client_id)

    def _refuse(self, request: Request) -> None:
        """What depends on how the executor was made."""
        sequences, most = request.sampling_config.num_requests, self.config.max_return_sequences
        if sequences > most:
            raise InputError(
                f"num_return_sequences is {sequences}, but the executor's max_return_sequences is {most}; lower it, or "
                "raise ExecutorConfig.max_return_sequences"
            )
        width, widest = request.sampling_config.beam_width, self.config.max_beam_width
        if width > widest:
            raise InputError(
                f"beam_width is {width}, but the executor's max_beam_width is {widest}; lower it, or raise "
                "ExecutorConfig.max_beam_width"
            )
        wanted = request.output_config
        if wanted.return_generation_logits and not self.config.gather_generation_logits:
            raise InputError(
                "return_generation_logits needs an executor with ExecutorConfig(gather_generation_logits=True)"
            )
        known = {output.name: output for output in self.config.additional_model_outputs}
        for output in wanted.additional_model_outputs:
            if output.name not in known:
                raise InputError(
                    f"additional_model_outputs asks for {output.name!r}; this executor has "
                    f"{', '.join(known) or 'none'}: name it in ExecutorConfig.additional_model_outputs"
                )
            if output.gather_context and not known[output.name].gather_context:
                raise InputError(
                    f"additional_model_outputs asks for {output.name!r} of the prompt; give gather_context=True in "
                    "ExecutorConfig.additional_model_outputs too"
                )


def engine_request(config: SamplingConfig) -> Callable[..., EngineRequest]:
    """What makes the engine's requests of one that is sampled so."""
    if config.beam_width == 1:
        return EngineRequest
    given = {
        "length_penalty": config.length_penalty,
        "early_stopping": config.early_stopping,
        "diversity_rate": config.beam_search_diversity_rate,
    }
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return partial(BeamRequest, beam=BeamParams(config.beam_width, config.num_sequences, **settings))


def kept(config: KvCacheRetentionConfig) -> Retention:
    """How long pages are kept."""
    ranges = tuple(
        RetentionRange(part.token_start, part.token_end, part.priority, part.duration_s)
        for part in config.token_range_retention_configs
    )
    return Retention(ranges, config.decode_retention_priority, config.decode_duration_s)


def wrapped(seed: int) -> int:
    """A seed in 64 bits, signed."""
    return (seed + 2**63) % 2**64 - 2**63
