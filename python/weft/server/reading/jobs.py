"""What a body asks for, read and prepared: nothing of it has begun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from weft.core import SamplingParams
from weft.core.beam_params import BeamParams
from weft.core.request import NOTHING, FieldNames, Gather, Request
from weft.errors import WeftError
from weft.grammar.guide import Guide
from weft.server.errors import ApiError, api_error, quoted
from weft.server.protocol.generation import SamplingFields
from weft.server.reading.guides import guide_field
from weft.server.served import ServedModel

NAMES = FieldNames(
    given="prediction",
    bias="allowed_token_ids",
    no_beams="leave out use_beam_search",
    config="",
    settings={"max_seq_len": "max_model_len"},
)
"""A client over HTTP reads names of JSON fields, and no advice that only the owner of the server can follow."""

MAX_PROMPT_LOGITS = 256 << 20
"""Bytes of logits that a prompt's log-probabilities may need."""


def _as_it_is(error: ApiError) -> ApiError:
    return error


@dataclass
class Job:
    """Prepared requests of one body, and what writing their answers needs to know."""

    served: ServedModel
    body: SamplingFields
    requests: list[Request]
    request_id: str
    created: int
    num_each: int
    guide: Guide | None = None
    wants_answer: bool = True
    """False where only the prompt is to be shown (max_tokens 0 with echo)."""
    in_own_names: Callable[[ApiError], ApiError] = _as_it_is
    """An error in the names of the route's fields, where those are not the body's."""

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts."""
        return sum(len(one.prompt_ids) for one in self.requests)

    def told(self, error: BaseException) -> ApiError:
        """What the client is told of an error."""
        found = api_error(error)
        if found.code == "guide_error" and found.param is None:
            found.param = guide_field(self.body)
        return self.in_own_names(found)


@dataclass(frozen=True)
class Asked:
    """What a route knows of a body besides its fields: who asks, the salt of their prefixes, the guide, the longest
    answer (None: as long as there is room), how many likeliest tokens are shown, and text that is expected as the
    answer."""

    client_id: int
    salt: str | None
    guide: Guide | None
    max_tokens: int | None
    logprobs: int | None
    given: str = ""
    wants_prompt_logprobs: bool = False


def prepared_job(
    served: ServedModel,
    body: SamplingFields,
    prompts: Sequence[Sequence[int]],
    asked: Asked,
    ids: tuple[str, int],
) -> Job:
    """Requests for these prompts. Raises `ApiError`."""
    if body.truncate_prompt_tokens is not None:
        prompts = [prompt[-body.truncate_prompt_tokens :] for prompt in prompts]
    _check_logits(served, body, prompts, asked)
    if body.ignore_eos and asked.guide is not None:
        raise ApiError(
            "a guide says where the answer may end, and tools have one; leave out ignore_eos",
            param="ignore_eos",
        )
    wants_answer = asked.max_tokens != 0
    try:
        requests = _requests(served, body, prompts, asked)
        prepared = served.client.prepare(requests)
    except WeftError as error:
        raise api_error(error, type(body).model_fields, guide=guide_field(body)) from error
    return Job(
        served, body, prepared, *ids, num_each=body.num_answers, guide=asked.guide, wants_answer=wants_answer
    )


def _requests(
    served: ServedModel, body: SamplingFields, prompts: Sequence[Sequence[int]], asked: Asked
) -> list[Request]:
    """One for each prompt; what is the same of all is made once, since the engine reads it once then."""
    beam, bias = _beam(served, body), _allowed(served, body.allowed_token_ids)

    @cache
    def sampling(max_tokens: int) -> SamplingParams:
        return body.sampling(served.defaults, max_tokens, asked.logprobs)

    return [
        Request(
            prompt,
            sampling(_max_tokens(served, asked, len(prompt))),
            guide=asked.guide,
            beam=beam,
            priority=body.engine_priority,
            timeout_s=body.timeout_s,
            client_id=asked.client_id,
            cache_salt=asked.salt,
            max_drafts=body.max_drafts,
            given=asked.given,
            gather=Gather(context_logits=True) if _wants_logits(body, asked) else NOTHING,
            end_ids=frozenset() if body.ignore_eos else None,
            bias=bias,
            streams=body.stream,
            names=NAMES,
        )
        for prompt in prompts
    ]


def _max_tokens(served: ServedModel, asked: Asked, num_prompt: int) -> int:
    most = asked.max_tokens
    if most is None:
        most = max(served.max_model_len - num_prompt, 1)
        most = min(most, served.default_max_tokens or most)
    return max(most, 1)


def _beam(served: ServedModel, body: SamplingFields) -> BeamParams | None:
    if not body.use_beam_search:
        return None
    penalty = 1.0 if body.length_penalty is None else body.length_penalty
    width, most = max(body.num_answers, 2), served.client.built.config.max_beam_width
    if most < 2:
        raise ApiError(
            "this model is served without beams; leave out use_beam_search", param="use_beam_search"
        )
    if width > most:
        raise ApiError(f"n is {width}; this model is served with {most} beams at most", param="n")
    return BeamParams(
        width,
        body.num_answers,
        length_penalty=penalty,
        early_stopping=0 if body.early_stopping is False else 1,
    )


def _check_logits(
    served: ServedModel, body: SamplingFields, prompts: Sequence[Sequence[int]], asked: Asked
) -> None:
    """Raise `ApiError` for more logits of prompts than are gathered."""
    if not _wants_logits(body, asked):
        return
    size = 4 * sum(map(len, prompts)) * served.text.vocab_size
    if size > MAX_PROMPT_LOGITS:
        raise ApiError(
            f"log-probabilities of prompts of {sum(map(len, prompts))} tokens need {size} bytes of logits; at most "
            f"{MAX_PROMPT_LOGITS} are gathered for a request: give fewer or shorter prompts",
            param="prompt_logprobs" if body.prompt_logprobs is not None else "echo",
        )


def _wants_logits(body: SamplingFields, asked: Asked) -> bool:
    return asked.wants_prompt_logprobs or body.prompt_logprobs is not None


def _allowed(served: ServedModel, tokens: Sequence[int] | None) -> torch.Tensor | None:
    """A bias that forbids all other tokens."""
    if tokens is None:
        return None
    size = served.text.vocab_size
    bad = next((token for token in tokens if not 0 <= token < size), None)
    if bad is not None:
        raise ApiError(
            f"allowed_token_ids has {quoted(bad)}; ids are 0 to {size - 1}", param="allowed_token_ids"
        )
    bias = torch.full((size,), float("-inf"))
    bias[list(tokens)] = 0
    return bias
