"""openai: objects of pydantic models by chat, by response and by tools, whole and streamed."""

from __future__ import annotations

from typing import Any

from asked import ANSWER, MESSAGES, PROMPT
from openai import LengthFinishReasonError, OpenAI, pydantic_function_tool
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


client = OpenAI(max_retries=0)
ASKED: Any = {"model": "weft-tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 100}
PERSON = Person(**ANSWER)

whole = client.chat.completions.parse(**ASKED, response_format=Person)
assert whole.choices[0].message.parsed == PERSON, whole
with client.chat.completions.stream(**ASKED, response_format=Person) as stream:
    assert stream.get_final_completion().choices[0].message.parsed == PERSON
try:
    client.chat.completions.parse(**{**ASKED, "max_tokens": 4}, response_format=Person)
except LengthFinishReasonError:
    pass
else:
    raise AssertionError("a cut answer has no object")

RESPONSE: Any = {"model": "weft-tiny", "input": PROMPT, "temperature": 0, "text_format": Person}
assert client.responses.parse(**RESPONSE).output_parsed == PERSON
with client.responses.stream(**RESPONSE) as stream:
    for _ in stream:
        pass
    assert stream.get_final_response().output_parsed == PERSON

choice = {"type": "function", "function": {"name": "Person"}}
called = client.chat.completions.parse(**ASKED, tools=[pydantic_function_tool(Person)], tool_choice=choice)
(call,) = called.choices[0].message.tool_calls
assert call.function.parsed_arguments == PERSON, called
