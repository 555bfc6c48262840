"""What bodies say, and how errors name it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pydantic")

from support.server.bodies import ASKED
from weft.server.errors import ApiError
from weft.server.protocol.body import Body
from weft.server.protocol.generation import ChatBody
from weft.server.protocol.responses import ResponsesBody


@pytest.mark.parametrize("body", ASKED, ids=lambda body: body.__name__)
def test_null_is_left_out(body: type[Body]) -> None:
    """As in OpenAI's schema: whatever has a default may be null."""
    asked = ASKED[body]
    names = {*body.model_fields, *body.REFUSED} - asked.keys()
    read = body.read({**asked, **dict.fromkeys(names)})
    plain = body.read(asked)
    assert read == plain
    told = {name for name in read.model_fields_set if getattr(read, name) is not None}
    assert told == plain.model_fields_set


def test_null_within_is_left_out() -> None:
    within = {
        "stream_options": {"include_usage": None},
        "structured_outputs": {"json": {}, "disable_any_whitespace": None},
        "guide": {"json_schema": {}, "strict": None, "max_whitespace": None},
    }
    read = ChatBody.read({**ASKED[ChatBody], **within})
    assert read.guide is not None and read.structured_outputs is not None and read.stream_options is not None
    assert not read.structured_outputs.disable_any_whitespace and not read.stream_options.include_usage
    assert read.guide.strict and read.guide.max_whitespace is None  # which is a value of its own
    goes_on = ChatBody.read(
        {**ASKED[ChatBody], "continue_final_message": True, "add_generation_prompt": None}
    )
    goes_on.check_together()
    assert not goes_on.add_generation_prompt


PLACES: dict[str, tuple[type[Body], dict[str, Any], str]] = {
    "a required field": (ChatBody, {"messages": None}, "messages"),
    "one that is missing": (ChatBody, {"response_format": {}}, "response_format.type"),
    "none of several types": (ResponsesBody, {"input": 5}, "input"),
    "within one of several types": (ResponsesBody, {"input": [5]}, "input.0"),
    "within a list within a list": (ChatBody, {"bad_words": [["x"]]}, "bad_words.0.0"),
    "an object's name": (ChatBody, {"logit_bias": {"x": 1}}, "logit_bias.x"),
    "above what is counted": (ChatBody, {"thinking_token_budget": 2**63}, "thinking_token_budget"),
    "refused": (ChatBody, {"guide": {"regex": "a", "max_whitespace": -1}}, "guide.max_whitespace"),
}


@pytest.mark.parametrize("name", PLACES)
def test_errors_name_what_was_sent(name: str) -> None:
    """A place in the body, without the names of types."""
    body, more, param = PLACES[name]
    with pytest.raises(ApiError) as caught:
        body.read({**ASKED[body], **more})
    assert caught.value.param == param and caught.value.message.startswith(f"{param}: ")
