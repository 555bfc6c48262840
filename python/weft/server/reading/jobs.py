"""Defines `Job`: the engine requests of one body, before they are submitted. All generating routes build it with
`job_of`.

This module converts completions. `chat.py` converts chats, which add a template, tools and reasoning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import torch

from weft.core import SamplingParams
from weft.core.beam_params import BeamParams
from weft.core.request import NOTHING, FieldNames, Gather, Request
from weft.grammar.guide import Guide
from weft.parsing import AnswerParser
from weft.server.errors import ApiError, api_error, quoted
from weft.server.ids import new_id
from weft.server.models import ServedModel
from weft.server.protocol.generation import CompletionBody, SamplingFields
from weft.server.reading.guides import Program, guide_field, guide_of
from weft.server.tenants import Tenant
from weft.tokenizer.text import decode

NAMES = FieldNames(
    given="prediction",
    bias="allowed_token_ids",
    no_beams="leave out use_beam_search",
    config="",
    settings={"max_seq_len": "max_model_len"},
)
"""The names for error messages to clients: JSON fields, without advice that only the server's operator can follow."""
MAX_PROMPT_LOGITS = 256 << 20
"""The limit in bytes on the logits of a job's prompts, which prompt log-probabilities need."""


@dataclass
class Job:
    """The engine requests of one body, one per prompt, and the data for writing the answers.

    `parsers` holds one parser per choice of a chat. It splits the answer into content, reasoning and tool calls.
    `echoes` holds the texts of the prompts, which a completion with `echo` repeats. `ignored` names the body's fields
    that have no effect.
    """

    served: ServedModel
    body: SamplingFields
    requests: list[Request]
    id: str
    created: int
    guide: Guide | None = None
    parsers: list[AnswerParser | None] = field(default_factory=list)
    echoes: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens in all prompts."""
        return sum(len(request.prompt_ids) for request in self.requests)

    @property
    def num_answers(self) -> int:
        """The number of answers to all prompts together."""
        return len(self.requests) * self.body.num_answers

    def api_error(self, error: BaseException) -> ApiError:
        """Convert an exception to the error that the client gets for this job."""
        answer = api_error(error)
        if answer.code == "guide_error" and answer.param is None:
            answer.param = guide_field(self.body)
        return answer


def completion_job(served: ServedModel, program: Program, tenant: Tenant, body: CompletionBody) -> Job:
    """Build the job for a completion. Raises `ApiError` and `WeftError`."""
    tokens = [_tokens(served, prompt, body.add_special_tokens) for prompt in body.prompts]
    guide = guide_of(body, served.handles, program)
    job = job_of(served, body, tokens, tenant, new_id("cmpl-", body.request_id), guide=guide)
    if body.echo:
        tokenizer = served.text.tokenizer_for("prompt")
        is_whole = body.truncate_prompt_tokens is None
        job.echoes = [
            prompt if isinstance(prompt, str) and is_whole else decode(tokenizer, request.prompt_ids)
            for prompt, request in zip(body.prompts, job.requests, strict=True)
        ]
    return job


def _tokens(served: ServedModel, prompt: str | list[int], add_special_tokens: bool) -> list[int]:
    if isinstance(prompt, str):
        served.text.check_text(prompt)
        tokenizer = served.text.tokenizer_for("prompt")
        tokens = list(tokenizer.encode(prompt, add_special_tokens=add_special_tokens))
    else:
        tokens = prompt
    if not tokens:
        raise ApiError("the prompt is empty; give some text", param="prompt")
    return tokens


def job_of(
    served: ServedModel,
    body: SamplingFields,
    prompts: Sequence[Sequence[int]],
    tenant: Tenant,
    answer_id: tuple[str, int],
    *,
    guide: Guide | None,
    given: str = "",
) -> Job:
    """Build the job for tokenized prompts. `answer_id` is the answer's id and creation time. `given` is the predicted
    answer, whose tokens the engine uses as drafts. Raises `ApiError` and `WeftError`."""
    if body.truncate_prompt_tokens is not None:
        prompts = [prompt[-body.truncate_prompt_tokens :] for prompt in prompts]
    if body.wants_prompt_logits:
        _check_logits(served, body, prompts)
    if body.ignore_eos and guide is not None:
        raise ApiError(
            "a guide says where the answer may end, and tools have one; leave out ignore_eos",
            param="ignore_eos",
        )
    beam, bias = _beam(served, body), _allowed(served, body.allowed_token_ids)

    # Requests with equal parameters share one object, so that the engine converts it only once.
    @cache
    def sampling(max_tokens: int) -> SamplingParams:
        return body.sampling(served.defaults, max_tokens)

    requests = [
        Request(
            prompt,
            sampling(_max_tokens(served, body, len(prompt))),
            guide=guide,
            beam=beam,
            priority=body.engine_priority,
            timeout_s=body.timeout_s,
            client_id=tenant.number,
            cache_salt=tenant.salted(body.cache_salt),
            max_drafts=body.max_drafts,
            given=given,
            gather=Gather(context_logits=True) if body.wants_prompt_logits else NOTHING,
            end_ids=frozenset() if body.ignore_eos else None,
            bias=bias,
            streams=body.stream,
            names=NAMES,
        )
        for prompt in prompts
    ]
    return Job(served, body, served.client.prepare(requests), *answer_id, guide=guide, ignored=body.ignored)


def _max_tokens(served: ServedModel, body: SamplingFields, num_prompt: int) -> int:
    limit, room = body.answer_tokens, max(served.max_model_len - num_prompt, 1)
    if limit is None:
        limit = min(room, served.default_max_tokens or room)
    elif body.ends_at_length:
        limit = min(limit, room)
    # The engine generates at least one token. A completion that only echoes its prompt drops that token.
    return max(limit, 1)


def _beam(served: ServedModel, body: SamplingFields) -> BeamParams | None:
    if not body.use_beam_search:
        return None
    penalty = 1.0 if body.length_penalty is None else body.length_penalty
    width, max_width = max(body.num_answers, 2), served.client.built.config.max_beam_width
    if max_width < 2:
        raise ApiError(
            "this model is served without beams; leave out use_beam_search", param="use_beam_search"
        )
    if width > max_width:
        raise ApiError(f"n is {width}; this model is served with {max_width} beams at most", param="n")
    return BeamParams(
        width,
        body.num_answers,
        length_penalty=penalty,
        early_stopping=0 if body.early_stopping is False else 1,
    )


def _check_logits(served: ServedModel, body: SamplingFields, prompts: Sequence[Sequence[int]]) -> None:
    """Raise `ApiError` if the prompts' logits need more than `MAX_PROMPT_LOGITS` bytes."""
    num_tokens = sum(map(len, prompts))
    size = 4 * num_tokens * served.text.vocab_size
    if size > MAX_PROMPT_LOGITS:
        raise ApiError(
            f"log-probabilities of prompts of {num_tokens} tokens need {size} bytes of logits; at most "
            f"{MAX_PROMPT_LOGITS} are gathered for a request: give fewer or shorter prompts",
            param="prompt_logprobs" if body.prompt_logprobs is not None else "echo",
        )


def _allowed(served: ServedModel, tokens: Sequence[int] | None) -> torch.Tensor | None:
    """Return a logit bias, float32 [vocab_size], that forbids all other tokens; None if all tokens are allowed."""
    if tokens is None:
        return None
    size = served.text.vocab_size
    wrong = next((token for token in tokens if not 0 <= token < size), None)
    if wrong is not None:
        raise ApiError(
            f"allowed_token_ids has {quoted(wrong)}; ids are 0 to {size - 1}", param="allowed_token_ids"
        )
    bias = torch.full((size,), float("-inf"))
    bias[list(tokens)] = 0
    return bias
