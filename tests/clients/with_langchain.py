"""langchain-openai: structured output by schema and by function, streaming, tools."""

from __future__ import annotations

from asked import ANSWER, PROMPT
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Person(BaseModel):
    """A person."""

    name: str
    age: int


model = ChatOpenAI(model="weft-tiny", temperature=0, max_tokens=80)
for method in ("json_schema", "function_calling"):
    found = model.with_structured_output(Person, method=method).invoke(PROMPT)
    assert found == Person(**ANSWER), (method, found)
    *_, last = model.with_structured_output(Person, method=method).stream(PROMPT)
    assert last == Person(**ANSWER), (method, last)
text = "".join(part.text if isinstance(part.text, str) else part.text() for part in model.stream(PROMPT))
assert Person.model_validate_json(text) == Person(**ANSWER), text
called = model.bind_tools([Person], tool_choice="Person").invoke(PROMPT)
assert called.tool_calls[0]["args"] == ANSWER, called
assert called.usage_metadata["output_tokens"] > 0
