"""An executor of weft-tiny on the CPU, and what the tests ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from weft.config import package_model_path
from weft.executor import Executor, ExecutorConfig, GuidedDecodingConfig, Request, Response
from weft.text import load_tokenizer

PROMPT = load_tokenizer(package_model_path()).encode("Text: Ada is a painter. Age 31.\nSchema: ")
NEVER = -1
"""As an `end_id`: the answer ends by its length."""
GUIDED = GuidedDecodingConfig()


def request(max_tokens: int = 5, **fields: Any) -> Request:
    """A request that ends by its length, unless told otherwise."""
    return Request(PROMPT, max_tokens, **{"end_id": NEVER, **fields})


def until_final(executor: Executor, request_id: int) -> list[Response]:
    """All responses of a request."""
    taken: list[Response] = []
    while not (taken and (taken[-1].has_error() or taken[-1].result.is_final)):
        came = executor.await_responses(request_id, timeout=30)
        assert came, "nothing came for 30 s"
        taken += came
    return taken


def answer(executor: Executor, one: Request) -> list[int]:
    """The tokens of a request that does not stream, without the prompt."""
    (response,) = until_final(executor, executor.enqueue_request(one))
    (tokens,) = response.result.output_token_ids
    return tokens if one.output_config.exclude_input_from_output else tokens[len(one.input_token_ids) :]


@pytest.fixture(scope="session")
def executor() -> Iterator[Executor]:
    config = ExecutorConfig(
        guided_decoding_config=GUIDED, max_batch_size=8, max_seq_len=512, request_stats_max_iterations=1000
    )
    with Executor(None, config, device="cpu") as executor:
        yield executor


@pytest.fixture
def make() -> Iterator[Callable[..., Executor]]:
    """Makes executors of weft-tiny and shuts them down."""
    made: list[Executor] = []

    def build(**config: Any) -> Executor:
        config.setdefault("max_batch_size", 2)
        config.setdefault("max_seq_len", 512)
        made.append(Executor(None, ExecutorConfig(**config), device="cpu"))
        return made[-1]

    yield build
    for one in made:
        one.shutdown()
