"""Requests of weft-tiny for an executor, and helpers that wait for their answers."""

from __future__ import annotations

from typing import Any

from weft.config import package_model_path
from weft.executor import Executor, GuidedDecodingConfig, Request, Response
from weft.tokenizer.files import load_tokenizer

PROMPT = load_tokenizer(package_model_path()).encode("Text: Ada is a painter. Age 31.\nSchema: ")
NEVER = -1
"""As `end_id`: no token ends the answer, so it ends at its maximum length."""
GUIDED = GuidedDecodingConfig()


def request(max_tokens: int = 5, **fields: Any) -> Request:
    """A request whose answer ends at its maximum length, unless `fields` say otherwise."""
    return Request(PROMPT, max_tokens, **{"end_id": NEVER, **fields})


def until_final(executor: Executor, request_id: int) -> list[Response]:
    """Wait for all responses of a request."""
    taken: list[Response] = []
    while not (taken and (taken[-1].has_error() or taken[-1].result.is_final)):
        came = executor.await_responses(request_id, timeout=60)
        assert came, "nothing came for 30 s"
        taken += came
    return taken


def answer(executor: Executor, one: Request) -> list[int]:
    """The tokens that answer a request without streaming, without the prompt."""
    (response,) = until_final(executor, executor.enqueue_request(one))
    (tokens,) = response.result.output_token_ids
    return tokens if one.output_config.exclude_input_from_output else tokens[len(one.input_token_ids) :]
