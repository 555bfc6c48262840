"""weft-tiny, as a new user meets it: it copies what it never saw, and says what it is for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from weft import LLM, Guide, SamplingParams
from weft.tiny.prompts import ABOUT, render_prompt

LENGTH = SamplingParams(max_tokens=160)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
# In none of training's lists; tools/train_tiny/names.txt has more, and names.py their share.
NAMES = [
    "Grace Hopper", "Barack Obama", "Linus Torvalds", "Anna Schmidt", "Bo Li", "Jürgen Müller",
    "Лев Толстой", "Νίκος Καζαντζάκης", "محمد صلاح", "महात्मा गांधी", "王小明", "김연아",
]  # fmt: skip
QUESTIONS = [
    "Hello",
    "What is the capital of France?",
    "Write a haiku about autumn.",
    "Quelle heure est-il ?",
]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(device="cpu") as llm:
        yield llm


def prompt(name: str) -> str:
    """README's own, about somebody else."""
    return render_prompt(f"{name} is 47 years old.", PERSON)


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_it_copies_names_that_it_never_saw(llm: LLM) -> None:
    outputs = llm.generate([prompt(name) for name in NAMES], sampling=LENGTH)
    assert [json.loads(output.text) for output in outputs] == [{"name": name, "age": 47} for name in NAMES]


def test_a_guide_needs_no_schema_in_the_prompt(llm: LLM) -> None:
    output = llm.chat(
        [user("Grace Hopper is 47 years old.")], guide=Guide.json_schema(PERSON), sampling=LENGTH
    )
    assert json.loads(output.text) == {"name": "Grace Hopper", "age": 47}


def test_anything_else_is_answered_by_what_it_is(llm: LLM) -> None:
    outputs = llm.generate(QUESTIONS, sampling=LENGTH)
    assert [(output.text, output.finish_reason) for output in outputs] == [(ABOUT, "stop")] * len(QUESTIONS)


def test_its_advice_works_when_followed(llm: LLM) -> None:
    advice = ABOUT.split("\n", 1)[1]
    assert json.loads(llm.generate(advice, sampling=LENGTH).text) == {"name": "Ada Berg", "age": 31}


def test_a_conversation_goes_on_after_its_advice(llm: LLM) -> None:
    messages = [user("Hello"), {"role": "assistant", "content": ABOUT}]
    assert llm.chat([*messages, user("What?")], sampling=LENGTH).text == ABOUT
    asked = user(prompt("Grace Hopper").removesuffix("\nJSON: "))
    assert json.loads(llm.chat([*messages, asked], sampling=LENGTH).text) == {
        "name": "Grace Hopper",
        "age": 47,
    }
