"""litellm: whole, streamed with a guide of vLLM's, tools, an error; the same over Anthropic's API."""

from __future__ import annotations

import json
import os

import litellm
from asked import ANSWER, KEY, MESSAGES, URL
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


TOOL = {"type": "function", "function": {"name": "find", "parameters": Person.model_json_schema()}}
BASES = {"openai": URL, "anthropic": os.environ["ANTHROPIC_BASE_URL"]}
ASKED = {"api_base": URL, "api_key": KEY, "messages": MESSAGES, "temperature": 0}

whole = litellm.completion(model="openai/weft-tiny", response_format=Person, **ASKED)
assert json.loads(whole.choices[0].message.content) == ANSWER, whole
guide = {"structured_outputs": {"regex": "[0-9]{4}"}}
parts = litellm.completion(model="hosted_vllm/weft-tiny", stream=True, extra_body=guide, **ASKED)
text = "".join(part.choices[0].delta.content or "" for part in parts)
assert len(text) == 4 and text.isdigit(), text
choice = {"type": "function", "function": {"name": "find"}}
called = litellm.completion(model="openai/weft-tiny", tools=[TOOL], tool_choice=choice, **ASKED)
(call,) = called.choices[0].message.tool_calls
assert json.loads(call.function.arguments) == ANSWER, called
for provider in ("openai", "anthropic"):
    refused = ""
    try:
        litellm.completion(model=f"{provider}/nope", num_retries=0, **{**ASKED, "api_base": BASES[provider]})
    except litellm.NotFoundError as error:
        refused = str(error)
    assert "nope" in refused
anthropic = {**ASKED, "api_base": BASES["anthropic"], "model": "anthropic/weft-tiny", "max_tokens": 100}
whole = litellm.completion(response_format=Person, **anthropic)
assert json.loads(whole.choices[0].message.content) == ANSWER, whole
parts = litellm.completion(stream=True, **anthropic)
assert json.loads("".join(part.choices[0].delta.content or "" for part in parts)) == ANSWER
called = litellm.completion(tools=[TOOL], tool_choice=choice, **anthropic)
(call,) = called.choices[0].message.tool_calls
assert json.loads(call.function.arguments) == ANSWER, called
