"""What /v1/responses keeps is bounded, and so is what one request reads of it."""

from __future__ import annotations

from typing import Any

import pytest

from support.server.asking import PROMPT, ask
from support.server.running import running
from weft.server.errors import ApiError
from weft.server.kept import KeptResponses
from weft.server.models import ServedModel
from weft.server.settings import ServerConfig


def answer(number: str, size: int) -> dict[str, Any]:
    return {"id": number, "output": [{"text": "x" * size}]}


def test_the_oldest_go_and_what_is_too_long_drives_out_nothing() -> None:
    responses = KeptResponses(2, 1000)
    responses.keep("ada", answer("a", 400), [])
    responses.keep("ada", answer("b", 400), [])
    responses.keep("ada", answer("long", 2000), [])
    assert responses.get("ada", "a").response["id"] == "a" and responses.get("ada", "b").items == []
    responses.keep("ada", answer("c", 10), [])
    responses.keep("bo", answer("a", 10), [])
    for tenant, gone in (("ada", "a"), ("ada", "long"), ("bo", "b")):
        with pytest.raises(ApiError, match="there is no response"):
            responses.get(tenant, gone)
    responses.delete("ada", "b")
    assert responses.get("ada", "c").num_bytes < 100


def test_a_conversation_is_no_longer_than_a_body(models: dict[str, ServedModel]) -> None:
    """Reasoning reaches no prompt, so that nothing else bounds it."""
    with running(models, ServerConfig(max_body_bytes=20_000)) as server:
        thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x" * 12_000}]}
        body: dict[str, Any] = {
            "input": [thought, {"role": "user", "content": PROMPT}],
            "max_output_tokens": 2,
        }
        status, first = ask(f"{server.url}/v1/responses", body)
        assert status == 200
        status, told = ask(f"{server.url}/v1/responses", {**body, "previous_response_id": first["id"]})
        assert status == 413 and told["error"]["code"] == "conversation_too_large"
        more = {"input": PROMPT, "max_output_tokens": 2, "previous_response_id": first["id"]}
        assert ask(f"{server.url}/v1/responses", more)[0] == 200
