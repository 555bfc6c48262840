"""What the public classes say, in the engine's words."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any

from weft.config import EngineConfig, Speculation
from weft.core import SamplingParams
from weft.engine.lifecycle import Request as EngineRequest
from weft.engine.lifecycle import StopWords
from weft.errors import InputError
from weft.executor.guides import Guides
from weft.executor.types import (
    CapacitySchedulerPolicy,
    ContextChunkingPolicy,
    ExecutorConfig,
    Request,
    SamplingConfig,
)
from weft.executor.words import StopTokens, Words

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
    """The sizes and policies of the executor's engine."""
    cache = config.kv_cache_config
    page_size = cache.tokens_per_block
    # One page more: the first is the padding's.
    pages = None if cache.max_tokens is None else 1 + -(-cache.max_tokens // page_size)
    return EngineConfig(
        max_batch=config.max_batch_size if config.max_batch_size is not None else EngineConfig.max_batch,
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
        """One for each sequence; they are numbered from `number` on."""
        self._refuse(request)
        self.words.check("input_token_ids", request.input_token_ids)
        sampling, end_ids = self._sampling(request), self._end_ids(request)
        rules = self.words.rules(sampling, end_ids, request.embedding_bias)
        params = request.guided_decoding_params
        guide = self.guides.future(params) if params is not None else None
        chosen = request.sampling_config.seed
        seed = chosen if chosen is not None else secrets.randbits(63)
        allotted = request.allotted_s
        return [
            EngineRequest(
                list(request.input_token_ids),
                sampling,
                wrapped(seed + index),
                rules,
                self._stop_words(request),
                guide,
                priority=request.priority,
                deadline=None if allotted is None else time.perf_counter() + allotted,
                max_drafts=request.num_draft_tokens,
                end_ids=end_ids,
                id=number + index,
                **self._extras(request),
            )
            for index in range(request.sampling_config.num_sequences)
        ]

    def _sampling(self, request: Request) -> SamplingParams:
        output = request.output_config
        return SamplingParams(
            max_tokens=request.max_tokens,
            bad_words=request.bad_words or (),
            stop=[word for word in request.stop_words or () if isinstance(word, str)],
            logprobs=output.top_log_probs if output.return_log_probs else None,
            **sampling_parameters(request.sampling_config),
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

    def _stop_words(self, request: Request) -> StopWords | None:
        """A watcher of its own for each sequence."""
        texts = [word for word in request.stop_words or () if isinstance(word, str)]
        tokens = [word for word in request.stop_words or () if not isinstance(word, str)]
        for word in tokens:
            self.words.check("stop_words", word)
        watcher = self.words.stop_texts(texts)
        return StopTokens(tokens, watcher) if tokens else watcher

    def _extras(self, request: Request) -> dict[str, Any]:
        """Fields of the engine's request that few requests set."""
        extras: dict[str, Any] = {}
        if request.external_draft_tokens_config is not None:
            extras["given"] = request.external_draft_tokens_config.tokens
        return extras

    def _refuse(self, request: Request) -> None:
        """What depends on how the executor was made."""
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


def sampling_parameters(config: SamplingConfig) -> dict[str, Any]:
    """What `SamplingParams` calls the same."""
    return config.parameters()


def wrapped(seed: int) -> int:
    """A seed in 64 bits, signed."""
    return (seed + 2**63) % 2**64 - 2**63
