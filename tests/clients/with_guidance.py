"""guidance: a guided answer within a conversation."""

from __future__ import annotations

from asked import ANSWER, KEY, PROMPT, URL
from guidance import assistant, json, models, user
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


model = models.OpenAI("weft-tiny", base_url=URL, api_key=KEY, echo=False)
with user():
    model += PROMPT
with assistant():
    model += json(name="answer", schema=Person)
assert Person.model_validate_json(model["answer"]) == Person(**ANSWER), model["answer"]
