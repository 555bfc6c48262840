"""anthropic: whole, streamed, parsed, tools, token counts, models, errors; and the example of docs/server.md."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import anthropic
from anthropic import Anthropic, AsyncAnthropic
from asked import ANSWER, KEY, MESSAGES
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


TOOL = {"name": "find", "description": "Finds a person.", "input_schema": Person.model_json_schema()}
ASKED: Any = {"model": "weft-tiny", "max_tokens": 100, "messages": MESSAGES}
# Newer versions of the client have no parameter for the temperature.
GREEDY: Any = {**ASKED, "extra_body": {"temperature": 0}}
URL = os.environ["ANTHROPIC_BASE_URL"]

client = Anthropic(base_url=URL, api_key=KEY, max_retries=0, _strict_response_validation=True)
raw = client.messages.with_raw_response.create(**GREEDY)
whole = raw.parse()
assert Person.model_validate_json(whole.content[0].text).model_dump() == ANSWER, whole
assert whole.stop_reason == "end_turn" and raw.request_id, whole
counted = client.messages.count_tokens(model="weft-tiny", messages=MESSAGES)
usage = whole.usage
assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens, (counted, usage)

with client.messages.stream(**GREEDY) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
assert text == whole.content[0].text == final.content[0].text, (text, final)
assert final.usage.output_tokens == usage.output_tokens and final.stop_reason == "end_turn", final

parsed = client.messages.parse(**ASKED, output_format=Person)
assert isinstance(parsed.parsed_output, Person), parsed
with client.messages.stream(**GREEDY, output_format=Person) as stream:
    assert stream.get_final_message().parsed_output == Person(**ANSWER)

# A loop of tools: a call, its result, the answer. Beta requests have a query.
forced: Any = {**GREEDY, "tools": [TOOL], "tool_choice": {"type": "tool", "name": "find"}}
for messages in (client.messages, client.beta.messages):
    with messages.stream(**forced) as stream:
        kinds = [event.type for event in stream]
        called = stream.get_final_message()
    (call,) = called.content
    assert called.stop_reason == "tool_use" and call.input == ANSWER and "input_json" in kinds, called
    assert messages.create(**forced).content[0].input == ANSWER
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Ada Berg, 31"}
    turns = [
        {"role": "user", "content": "Who is it?"},
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [result, {"type": "text", "text": MESSAGES[0]["content"]}]},
    ]
    answer = messages.create(**{**GREEDY, "messages": turns}, tools=[TOOL])
    assert Person.model_validate_json(answer.content[0].text).model_dump() == ANSWER, answer

# The client's own loop of tools.
found: list[Person] = []


@anthropic.beta_tool
def find(name: str, age: int) -> str:
    """Finds a person."""
    found.append(Person(name=name, age=age))
    return "found"


runner = client.beta.messages.tool_runner(
    **GREEDY, tools=[find], tool_choice={"type": "tool", "name": "find"}, max_iterations=2
)
assert [one.stop_reason for one in runner] == ["tool_use", "tool_use"] and found[0] == Person(**ANSWER), found

assert [model.id for model in client.models.list()] == ["weft-tiny"]
assert client.models.retrieve("weft-tiny").max_input_tokens > 0


def refused(kind: type[anthropic.APIStatusError], **more: Any) -> anthropic.APIStatusError:
    """Return the error of a request, which must be of this kind."""
    try:
        client.messages.create(**{**ASKED, **more})
    except kind as error:
        return error
    raise AssertionError(more)


assert "nope" in refused(anthropic.NotFoundError, model="nope").message
image = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://x"}}]}]
error = refused(anthropic.BadRequestError, messages=image)
assert "models here read text" in error.message and error.body["type"] == "error", error.body
refused(anthropic.AuthenticationError, extra_headers={"Authorization": "Bearer wrong"})
with client.with_options(default_headers={"X-Api-Key": KEY, "Authorization": anthropic.omit}) as older:
    assert older.messages.create(**GREEDY).content[0].text == text


async def main() -> None:
    """The asynchronous client streams the same text."""
    made = AsyncAnthropic(base_url=URL, api_key=KEY, max_retries=0)
    async with made, made.messages.stream(**GREEDY) as stream:
        assert await stream.get_final_text() == text


asyncio.run(main())

# The example of the documentation.
page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
(example,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.S) if "from anthropic" in code)
exec(example.replace("http://127.0.0.1:8000", URL).replace('"none"', repr(KEY)), {"__name__": "page"})
