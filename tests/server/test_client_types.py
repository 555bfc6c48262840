"""Every field of an answer is of the type that OpenAI's client expects: it checks them, and so do its models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from support.server.asking import MESSAGES, PROMPT, TOOLS, ask, events
from support.server.running import Running

USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def strict(server: Running) -> Iterator[Any]:
    """A client that refuses answers of other types."""
    made = OpenAI(
        base_url=f"{server.url}/v1",
        api_key="none",
        max_retries=0,
        timeout=60,
        _strict_response_validation=True,
    )
    with made:
        yield made


CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "log-probabilities": {"logprobs": True, "top_logprobs": 2},
    "tools": {"tools": TOOLS, "tool_choice": "required"},
    "several": {"n": 2},
    "cut": {"max_tokens": 3},
}


@pytest.mark.parametrize("name", CHATS)
def test_chats(strict: Any, server: Running, name: str) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 60}
    asked |= CHATS[name]
    whole = strict.chat.completions.create(**asked)
    chunks = list(strict.chat.completions.create(**asked, **USAGE))
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens and chunks[-1].choices == []
    for raw in events(ask(f"{server.url}/v1/chat/completions", {**asked, **USAGE})[1]):
        ChatCompletionChunk.model_validate(raw, strict=True)
    ended = [chunk.choices[0].finish_reason for chunk in chunks[:-1]]
    assert [reason for reason in ended if reason] == [choice.finish_reason for choice in whole.choices]


COMPLETIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "log-probabilities": {"logprobs": 2},
    "several": {"n": 2, "prompt": [PROMPT, "Text:"]},
    "echo": {"echo": True},
    "cut": {"max_tokens": 3},
}


@pytest.mark.parametrize("name", COMPLETIONS)
def test_completions(strict: Any, server: Running, name: str) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": 40}
    asked |= COMPLETIONS[name]
    whole = strict.completions.create(**asked)
    *chunks, last = events(ask(f"{server.url}/v1/completions", {**asked, **USAGE})[1])
    assert last["choices"] == [] and last["usage"]["total_tokens"] == whole.usage.total_tokens
    ended: dict[int, str] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert {"text", "index", "finish_reason", "logprobs"} <= choice.keys()
        assert (choice["logprobs"] is None) == ("logprobs" not in asked)
        if choice["finish_reason"] is None:
            assert choice["index"] not in ended
            choice["finish_reason"] = "stop"  # OpenAI's API says null, too, which its model does not know
        else:
            ended[choice["index"]] = choice["finish_reason"]
        Completion.model_validate(chunk, strict=True)
    assert ended == {choice.index: choice.finish_reason for choice in whole.choices}


def test_responses(strict: Any) -> None:
    asked: dict[str, Any] = {"model": "tiny", "input": PROMPT, "temperature": 0, "max_output_tokens": 60}
    whole = strict.responses.create(**asked)
    assert whole.output_text and strict.responses.retrieve(whole.id) == whole
    assert strict.responses.input_items.list(whole.id).data[0].type == "message"
    last = list(strict.responses.create(**asked, stream=True))[-1]
    assert last.type == "response.completed" and last.response.output_text == whole.output_text
    cut = strict.responses.create(**{**asked, "max_output_tokens": 2})
    assert cut.incomplete_details.reason == "max_output_tokens"


def test_models(strict: Any) -> None:
    assert [one.id for one in strict.models.list()] == ["tiny", "plain"]
    assert strict.models.retrieve("tiny").object == "model"
