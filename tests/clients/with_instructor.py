"""instructor: objects by schema and by tools, a list of them, and objects that grow in a stream."""

from __future__ import annotations

import instructor
from asked import ANSWER, MESSAGES
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
    client = instructor.from_openai(OpenAI(), mode=mode)
    found = client.chat.completions.create(
        model="weft-tiny", messages=MESSAGES, temperature=0, response_model=Person
    )
    assert found.model_dump() == ANSWER, (mode, found)
    several = client.chat.completions.create(
        model="weft-tiny", messages=MESSAGES, temperature=0, response_model=list[Person]
    )
    assert all(isinstance(person, Person) for person in several) and several, (mode, several)
    partial = client.chat.completions.create_partial(
        model="weft-tiny", messages=MESSAGES, temperature=0, response_model=Person
    )
    *_, last = partial
    assert last.model_dump() == ANSWER, (mode, last)
