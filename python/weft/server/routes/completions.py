"""A completion's body as a job and its writer."""

from __future__ import annotations

from weft.errors import WeftError
from weft.server.errors import ApiError, api_error
from weft.server.protocol.completions import CompletionBody
from weft.server.reading.guides import GuideSources, guide_of
from weft.server.reading.jobs import Asked, Job, prepared_job
from weft.server.served import ServedModel
from weft.server.state import ServerState, new_id
from weft.server.tenants import Tenant
from weft.server.writing.completions import CompletionWriter
from weft.tokenizer.text import decode

DEFAULT_TOKENS = 16
"""OpenAI's `max_tokens` of a completion that names none."""


def completion_request(
    state: ServerState, tenant: Tenant, body: CompletionBody
) -> tuple[Job, CompletionWriter]:
    """Read a completion's body. Raises `ApiError`."""
    body.check_together()
    state.check_priority(body.priority)
    served = state.model(body.model)
    try:
        sources = GuideSources(
            served.handles, lambda name, argument: state.programs.guide(tenant.name, name, argument)
        )
        prompts = [_tokens(served, prompt, body.add_special_tokens) for prompt in body.prompts]
        asked = Asked(
            tenant.number,
            tenant.salted(body.cache_salt),
            guide_of(body, sources),
            DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens,
            body.logprobs,
            wants_prompt_logprobs=body.echo and body.logprobs is not None,
        )
        job = prepared_job(served, body, prompts, asked, new_id("cmpl-", body.request_id))
        tokenizer = served.text.tokenizer_for("prompt")
        echoes = [
            given
            if isinstance(given, str) and body.truncate_prompt_tokens is None
            else decode(tokenizer, one.prompt_ids)
            for given, one in zip(body.prompts, job.requests, strict=True)
        ]
        return job, CompletionWriter(job, body, echoes if body.echo else ())
    except WeftError as error:
        raise api_error(error, type(body).model_fields) from error


def _tokens(served: ServedModel, prompt: str | list[int], special: bool) -> list[int]:
    if isinstance(prompt, str):
        served.text.check_text(prompt)
        tokenizer = served.text.tokenizer_for("prompt")
        found = list(tokenizer.encode(prompt, add_special_tokens=special))
    else:
        found = prompt
    if not found:
        raise ApiError("the prompt is empty; give some text", param="prompt")
    return found
