"""Executors of weights in memory, and of token ids alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from support.executor import GUIDED, PROMPT, answer, request, until_final
from support.families import FAMILIES, save
from weft import InputError, ModelError, Speculation, TokenizerError
from weft.config import package_model_path
from weft.executor import (
    Executor,
    ExecutorConfig,
    GuidedDecodingParams,
    GuideType,
    Request,
)
from weft.grammar.vocabulary.tokenizer import Vocabulary

PATH = package_model_path()
SMALL = ExecutorConfig(max_batch_size=2, max_seq_len=256)


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return load_file(PATH / "model.safetensors")


@pytest.fixture(scope="module")
def config_json() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((PATH / "config.json").read_text())
    return data


def test_they_say_what_the_directory_says(
    executor: Executor, weights: dict[str, Tensor], config_json: dict[str, Any]
) -> None:
    expected = answer(executor, request(12, end_id=None))
    with Executor(weights, SMALL, config_json=config_json, device="cpu") as bare:
        assert answer(bare, request(12, end_id=None)) == expected
        assert bare.client.built.text.end_ids == (config_json["eos_token_id"],)
        number = bare.enqueue_request(request(2, stop_words=["a"]))
        (response,) = until_final(bare, number)
        assert "there is no tokenizer" in response.error_msg


def test_models_that_transformers_runs_are_those_of_their_directory(tmp_path: Path) -> None:
    save("dbrx", FAMILIES["dbrx"], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    weights = load_file(tmp_path / "model.safetensors")
    with Executor(tmp_path, SMALL, device="cpu") as made:
        expected = answer(made, request(12, end_id=None))
    with Executor(weights, SMALL, config_json=config, device="cpu") as made:
        assert answer(made, request(12, end_id=None)) == expected


def test_with_a_tokenizer_they_are_guided(weights: dict[str, Tensor], config_json: dict[str, Any]) -> None:
    drafting = Speculation.eagle3(PATH / "eagle3")
    config = ExecutorConfig(
        max_batch_size=2, max_seq_len=256, guided_decoding_config=GUIDED, speculation=drafting
    )
    vocabulary = Vocabulary.from_huggingface(PATH, vocab_size=config_json["vocab_size"])
    params = GuidedDecodingParams(GuideType.REGEX, "[0-9]{4}")
    one = request(9, end_id=None, guided_decoding_params=params)
    told = []
    for tokenizer in (PATH, str(PATH), vocabulary):
        with Executor(weights, config, config_json=config_json, tokenizer=tokenizer, device="cpu") as made:
            told.append(answer(made, one))
    assert told[0] == told[1] == told[2]
    assert len(told[0]) <= 5


def test_what_does_not_fit_is_said(weights: dict[str, Tensor], config_json: dict[str, Any]) -> None:
    missing = dict(list(weights.items())[1:])
    misshapen = weights | {"model.norm.weight": torch.zeros(3)}
    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (weights, {}, InputError, "need config_json"),
        (None, {"config_json": config_json}, InputError, "config_json is for weights in memory"),
        (5, {}, InputError, "give a directory, None, or a dict of tensors"),
        ("/nowhere", {}, ModelError, "no such directory"),
        (
            missing,
            {"config_json": config_json},
            ModelError,
            "weights in memory: no tensor '.*'; expected one of",
        ),
        (misshapen, {"config_json": config_json}, ModelError, "has shape \\[3\\]"),
        (weights | {"extra": torch.zeros(1)}, {"config_json": config_json}, ModelError, "unexpected tensors"),
        (
            weights,
            {"config_json": config_json, "tokenizer": 5},
            InputError,
            "give a directory or a Vocabulary",
        ),
        (
            weights,
            {"config_json": config_json, "tokenizer": Vocabulary.from_tokens([b"a", b""], end_ids=[1])},
            TokenizerError,
            "the Vocabulary has 2 tokens",
        ),
        (
            weights,
            {"config_json": config_json, "config": ExecutorConfig(guided_decoding_config=GUIDED)},
            InputError,
            "guides need a tokenizer",
        ),
    ]
    for model, keywords, error, message in cases:
        with pytest.raises(error, match=message):
            Executor(model, **{"device": "cpu", **keywords})
    with pytest.raises(InputError, match=r"give ModelType\.DECODER_ONLY"):
        Executor(None, {"max_batch_size": 2}, device="cpu")  # type: ignore[arg-type]


def test_prompts_are_the_models_tokens(weights: dict[str, Tensor], config_json: dict[str, Any]) -> None:
    for ends in (None, [], [10**6]):
        with pytest.raises(TokenizerError, match="eos_token_id"):
            Executor(weights, SMALL, config_json=config_json | {"eos_token_id": ends}, device="cpu")
    with Executor(weights, SMALL, config_json=config_json | {"eos_token_id": [7, 8]}, device="cpu") as made:
        assert made.client.built.text.end_ids == (7, 8)
        number = made.enqueue_request(Request([*PROMPT, 10**6], 3))
        (response,) = until_final(made, number)
        assert "input_token_ids holds token id 1000000" in response.error_msg
