"""Translates TensorRT-LLM's requests to weft's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weft.client.capacity import check_sequences
from weft.client.model_text import ModelText
from weft.config import Lookahead
from weft.core import SamplingParams
from weft.core.beam_params import BeamParams
from weft.core.logits_processors import LogitsProcessor
from weft.core.request import NOTHING, FieldNames, Gather, PenaltyRule, Request
from weft.core.retention import Retention, RetentionRange
from weft.errors import InputError, RequestError
from weft.executor.guides import Guides
from weft.executor.settings import client_limits, lookahead
from weft.executor.types import ExecutorConfig, KvCacheRetentionConfig, OutputConfig, SamplingConfig
from weft.executor.types import Request as ExecutorRequest
from weft.executor.types.served import check_served

NAMES = FieldNames(
    prompt="input_token_ids",
    stop_words="stop_words",
    given="external_draft_tokens_config.tokens",
    answers="num_return_sequences",
    outputs="additional_model_outputs",
    config="ExecutorConfig",
    settings={
        "additional_outputs": "additional_model_outputs",
        "max_program_bytes": "GuidedDecodingConfig.max_program_bytes",
        "max_sequences": "max_return_sequences",
        "num_pages": "KvCacheConfig.max_tokens",
    },
)
OWN_PROCESSOR = "logits_post_processor"
"""The name that errors use for a request's own logits processor."""


@dataclass(frozen=True)
class Translator:
    """Translates the requests of one executor."""

    config: ExecutorConfig
    text: ModelText
    guides: Guides

    def translated(self, request: ExecutorRequest) -> Request:
        """Translate a request. If the executor can't serve it, the result's `refusal` is the reason."""
        try:
            check_served(request)
            made = self._request(request)
            # Checked here already: a request with too many sequences must be refused before it counts for the queue.
            check_sequences(made, client_limits(self.config))
            return made
        except (InputError, RequestError) as error:
            return Request((), tag=request, refusal=error)

    def _request(self, request: ExecutorRequest) -> Request:
        params, drafts = request.guided_decoding_params, request.external_draft_tokens_config
        retention = request.kv_cache_retention_config
        return Request(
            request.input_token_ids,
            self._sampling(request),
            None if params is None else self.guides.of(params),
            beam_params(request.sampling),
            priority=request.priority,
            timeout_s=request.allotted_s,
            client_id=request.client_id,
            max_drafts=request.num_draft_tokens,
            given=() if drafts is None else drafts.tokens,
            only_given=drafts is not None,
            processor=self._processor(request),
            gather=gathered(request.output_config),
            retention=None if retention is None else kept(retention),
            cache_salt=None if request.cache_salt_id is None else str(request.cache_salt_id),
            stop_words=request.stop_words or (),
            end_ids=self._end_ids(request),
            bias=request.embedding_bias,
            penalties=PenaltyRule(True, request.sampling.prompt_ignore_length or 0, after_temperature=True),
            lookahead=_lookahead(request),
            streams=request.streaming,
            names=NAMES,
            tag=request,
        )

    def _sampling(self, request: ExecutorRequest) -> SamplingParams:
        output = request.output_config
        return SamplingParams(
            n=request.sampling.num_sequences,
            max_tokens=request.max_tokens,
            bad_words=request.bad_words or (),
            stop=[word for word in request.stop_words or () if isinstance(word, str)],
            logprobs=output.top_log_probs if output.return_log_probs else None,
            **request.sampling.parameters(with_log_probs=output.return_log_probs),
        )

    def _end_ids(self, request: ExecutorRequest) -> frozenset[int] | None:
        """The tokens that end the answer; None for a guided answer, which its vocabulary's end tokens end. Raises
        `InputError` for an `end_id` that does not fit."""
        end = request.end_id if request.end_id is not None and request.end_id >= 0 else None
        if request.guided_decoding_params is not None:
            if end is None or end in self.text.end_ids:
                return None
            raise InputError(
                f"end_id is {end}, but a guided answer ends with the model's own end token "
                f"({', '.join(map(str, self.text.end_ids))}); leave end_id out"
            )
        if end is None:
            return frozenset()
        self.text.check("end_id", [end])
        return frozenset({end})

    def _processor(self, request: ExecutorRequest) -> LogitsProcessor | None:
        """The request's logits processor. Raises `InputError` for a name that the executor does not have."""
        config, name = self.config.logits_post_processor_config, request.logits_post_processor_name
        function: Callable[..., Any] | None
        if request.logits_post_processor is not None:
            function, is_batched = request.logits_post_processor, False
        elif name is None:
            return None
        elif name == ExecutorRequest.BATCHED_POST_PROCESSOR_NAME:
            if config is None or config.processor_batched is None:
                raise InputError(
                    f"the logits post-processor {name!r} is LogitsPostProcessorConfig.processor_batched, which this "
                    "executor was made without"
                )
            function, is_batched = config.processor_batched, True
        else:
            known = (config.processor_map if config is not None else None) or {}
            if known.get(name) is None:
                raise InputError(
                    f"there is no logits post-processor {name!r}; this executor has {', '.join(known) or 'none'}: name "
                    "it in LogitsPostProcessorConfig.processor_map"
                )
            function, is_batched = known[name], False
        assert function is not None
        return LogitsProcessor(name or OWN_PROCESSOR, function, is_batched)


def beam_params(config: SamplingConfig) -> BeamParams | None:
    """The parameters of a beam search; None for one beam."""
    if config.beam_width == 1:
        return None
    given = {
        "length_penalty": config.length_penalty,
        "early_stopping": config.early_stopping,
        "diversity_rate": config.beam_search_diversity_rate,
        "widths": config.beam_width_array or None,
    }
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return BeamParams(config.beam_width, config.num_sequences, **settings)


def _lookahead(request: ExecutorRequest) -> Lookahead | None:
    """The request's sizes for lookahead decoding; None: the engine's sizes."""
    sizes = request.lookahead_config
    return None if sizes is None else lookahead(sizes)


def gathered(output: OutputConfig) -> Gather:
    """The tensors that a request returns."""
    named = output.additional_model_outputs or ()
    if not (output.return_context_logits or output.return_generation_logits or named):
        return NOTHING
    return Gather(
        context_logits=output.return_context_logits,
        generation_logits=output.return_generation_logits,
        names=tuple(entry.name for entry in named),
        context_names=tuple(entry.name for entry in named if entry.gather_context),
    )


def kept(config: KvCacheRetentionConfig) -> Retention:
    """The retention of a request's pages."""
    ranges = tuple(
        RetentionRange(part.token_start, part.token_end, part.priority, part.duration_s)
        for part in config.token_range_retention_configs
    )
    return Retention(ranges, config.decode_retention_priority, config.decode_duration_s)
