"""What a checkpoint's generation_config.json says of sampling, and who takes it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from weft import LLM, ModelError, SamplingParams, package_model_path
from weft.client.generation_config import sampling_defaults
from weft.errors import InputError

SAID = {
    "temperature": 0.6,
    "top_p": 0.9,
    "top_k": 20,
    "repetition_penalty": 1.05,
    "max_new_tokens": 7,
    "eos_token_id": [1, 2],
    "transformers_version": "5.0",
    "min_p": None,
}
READ = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.05, "max_tokens": 7}


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (SAID, READ),
        ({**SAID, "do_sample": True}, READ),
        ({**SAID, "do_sample": False}, {**READ, "temperature": 0.0}),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"eos_token_id": 2}, {}),
    ],
)
def test_the_file_gives_defaults(tmp_path: Path, said: dict[str, Any], read: dict[str, Any]) -> None:
    assert sampling_defaults(tmp_path) == {}
    (tmp_path / "generation_config.json").write_text(json.dumps(said))
    assert sampling_defaults(tmp_path) == read
    assert sampling_defaults(tmp_path, "weft") == {}


def test_values_that_no_request_may_have_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"top_p": 7}')
    with pytest.raises(
        ModelError, match=r"generation_config\.json: top_p is 7; .* generation_config=\"weft\""
    ):
        sampling_defaults(tmp_path)
    with pytest.raises(InputError, match='it must be "auto"'):
        sampling_defaults(tmp_path, "vllm")


def test_requests_without_sampling_take_them(tmp_path: Path) -> None:
    shutil.copytree(package_model_path(), tmp_path / "model")
    path = tmp_path / "model" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_new_tokens": 3, "top_k": 5}))
    with LLM(path.parent, device="cpu") as llm:
        assert llm.default_sampling_params == SamplingParams(max_tokens=3, top_k=5)
        assert len(llm.generate("Text: x").token_ids) == 3
        outputs = llm.generate(["Text: x"] * 2, [None, SamplingParams(max_tokens=5)])
        assert [len(output.token_ids) for output in outputs] == [3, 5]
    with LLM(path.parent, device="cpu", generation_config="weft") as llm:
        assert llm.default_sampling_params == SamplingParams()


def test_weft_tiny_is_greedy() -> None:
    assert SamplingParams(**sampling_defaults(package_model_path())) == SamplingParams()
