"""pydantic-ai: an agent whose output is an object, by tools and by schema, whole and streamed."""

from __future__ import annotations

import asyncio
from typing import Any

from asked import ANSWER, KEY, PROMPT, URL
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Person(BaseModel):
    name: str
    age: int


async def main() -> None:
    model = OpenAIChatModel("weft-tiny", provider=OpenAIProvider(base_url=URL, api_key=KEY))
    outputs: list[Any] = [Person, NativeOutput(Person)]
    for output in outputs:
        agent: Agent[None, Person] = Agent(model, output_type=output, model_settings={"temperature": 0})
        result = await agent.run(PROMPT)
        assert result.output == Person(**ANSWER), result
        async with agent.run_stream(PROMPT) as stream:
            assert await stream.get_output() == Person(**ANSWER)


asyncio.run(main())
