"""OpenAI's client with pydantic models: every `.parse` gives objects, also streamed."""

from __future__ import annotations

from datetime import date, datetime
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import openai
import pytest
from pydantic import BaseModel, Field

from support.server.asking import ANSWER, MESSAGES, PROMPT


class Person(BaseModel):
    name: str
    age: int


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    color: Color
    count: int = Field(ge=1, le=9)


class Invoice(BaseModel):
    """An invoice with a field of every common kind."""

    kind: Literal["invoice", "offer"]
    number: UUID
    total: float
    due: date | None
    seen: datetime
    lines: list[Line] = Field(min_length=1, max_length=2)
    paid: bool
    buyer: Person


ASKED: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "temperature": 0}
CLOSED = {"on_length": "close"}


@pytest.mark.parametrize("model", [Person, Invoice])
def test_a_chat_is_parsed_whole_and_streamed(client: Any, model: type[BaseModel]) -> None:
    asked = {**ASKED, "response_format": model, "max_tokens": 250, "extra_body": CLOSED}
    answer = client.chat.completions.parse(**asked).choices[0].message
    assert isinstance(answer.parsed, model)
    with client.chat.completions.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0].message
    assert final.parsed == answer.parsed
    (done,) = (event for event in events if event.type == "content.done")
    assert done.parsed == answer.parsed
    snapshots = [event.parsed for event in events if event.type == "content.delta" and event.parsed]
    assert model.model_validate(snapshots[-1]) == answer.parsed


@pytest.mark.parametrize("model", [Person, Invoice])
def test_a_response_is_parsed_whole_and_streamed(client: Any, model: type[BaseModel]) -> None:
    asked: dict[str, Any] = {"model": "tiny", "input": PROMPT, "temperature": 0, "max_output_tokens": 250}
    asked |= {"text_format": model, "extra_body": CLOSED}
    response = client.responses.parse(**asked)
    assert isinstance(response.output_parsed, model)
    with client.responses.stream(**asked) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_parsed == response.output_parsed


def test_the_arguments_of_a_tool_are_an_object(client: Any) -> None:
    tool = openai.pydantic_function_tool(Person, name="find")
    choice = {"type": "function", "function": {"name": "find"}}
    asked = {**ASKED, "tools": [tool], "tool_choice": choice, "max_tokens": 120}
    (call,) = client.chat.completions.parse(**asked).choices[0].message.tool_calls
    assert call.function.parsed_arguments == Person(**ANSWER)
    with client.chat.completions.stream(**asked) as stream:
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert call.function.parsed_arguments == Person(**ANSWER)


def test_a_cut_answer_is_an_error_of_the_client(client: Any) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**ASKED, response_format=Person, max_tokens=4)
