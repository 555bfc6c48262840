"""Engines whose guides are compiled for a vocabulary of their own, made of materials."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from weft import EngineConfig, Guide, InputError, SamplingParams, Speculation, TokenizerError, load_tokenizer
from weft.client import EngineClient, ModelSource, Request
from weft.client.flight_recorder import record
from weft.config import package_model_path
from weft.grammar import Vocabulary, VocabularyMaterials
from weft.replay import replay

PATH = package_model_path()
PROMPT = load_tokenizer(PATH).encode("Text: Ada is a painter.\nSchema: ")
GUIDES = [
    Guide.regex("[0-9]{2,4}"),
    Guide.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
    Guide.after("a", Guide.choice(["yes", "no"]), max_free_tokens=2),
]
OTHER_END = 2
"""A special token that ends nothing of the model's own."""


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return load_file(PATH / "model.safetensors")


@pytest.fixture(scope="module")
def config_json() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((PATH / "config.json").read_text())
    return data


@pytest.fixture(scope="module")
def materials() -> VocabularyMaterials:
    return VocabularyMaterials(**json.loads(json.dumps(VocabularyMaterials.of(PATH).to_dict())))


def client(source: ModelSource, speculation: Speculation | None = None) -> EngineClient:
    config = EngineConfig(max_batch=2, max_seq_len=256)
    return EngineClient.build(source, "cpu", "auto", speculation or Speculation.none(), config)


def answers(made: EngineClient, guides: list[Guide]) -> list[list[int]]:
    sampling = SamplingParams(max_tokens=20, temperature=0.9, seed=3)
    handles = made.submit([Request(PROMPT, sampling, guide) for guide in guides])
    told = []
    for (_, deltas), handle in zip(made.responses.take([h.id for h in handles], 60), handles, strict=True):
        assert handle.error is None, handle.error
        (sequence,) = [delta.sequence for delta in deltas if delta.is_final]
        assert sequence is not None
        told.append(sequence.output.token_ids)
    return told


@pytest.fixture(scope="module")
def expected() -> Iterator[list[list[int]]]:
    with closing(client(ModelSource.of(None))) as made:
        yield answers(made, GUIDES)


@pytest.mark.parametrize("speculation", [Speculation.none(), Speculation.forced()], ids=str)
def test_weights_in_memory_without_a_tokenizer_are_guided(
    weights: dict[str, Tensor],
    config_json: dict[str, Any],
    materials: VocabularyMaterials,
    expected: list[list[int]],
    speculation: Speculation,
) -> None:
    source = ModelSource.of(weights, config_json, guides=materials)
    with closing(client(source, speculation)) as made:
        assert answers(made, GUIDES) == expected
        assert made.built.text.tokenizer is None and made.built.text.vocabulary is None
        record(made, 8, None)  # its recordings are of the guides' vocabulary


def test_a_directory_keeps_its_tokenizer_for_texts(
    materials: VocabularyMaterials, expected: list[list[int]]
) -> None:
    for guides in (materials, materials.vocabulary()):
        with closing(client(ModelSource.of(None, guides=guides))) as made:
            assert answers(made, GUIDES) == expected
            assert made.built.text.tokenizer is not None


def test_its_own_ends_end_guided_answers_alone(materials: VocabularyMaterials) -> None:
    """TensorRT-LLM's stop_token_ids end what the grammar allows, whatever ends the request otherwise."""
    other = VocabularyMaterials(materials.encoded_vocab, materials.tokenizer_str, [OTHER_END])
    with closing(client(ModelSource.of(None, guides=other))) as made:
        end = made.built.text.end_ids[0]
        assert end != OTHER_END
        for tokens in answers(made, GUIDES):
            assert tokens[-1] == OTHER_END and end not in tokens
        assert OTHER_END not in answers(made, [None])[0]  # type: ignore[list-item]
        (given,) = made.submit(
            [Request(PROMPT, SamplingParams(max_tokens=20), GUIDES[0], end_ids=frozenset({OTHER_END}))]
        )
        ((_, (delta,)),) = made.responses.take([given.id], 60)
        assert delta.sequence is not None and delta.sequence.output.token_ids[-1] == OTHER_END


def test_a_flight_recorder_records_the_guides_vocabulary(materials: VocabularyMaterials) -> None:
    """Also where that ends with other tokens than the engine does: what is done again agrees."""
    other = VocabularyMaterials(materials.encoded_vocab, materials.tokenizer_str, [OTHER_END])
    with closing(client(ModelSource.of(None, guides=other), Speculation.ngram())) as made:
        recorder = record(made, 64, None)
        answers(made, GUIDES)
        recording = made.call(lambda: recorder.recording())
        assert made.compiler is not None
        replayed = replay(recording, made.compiler.vocabulary, seeds=range(3))
        assert replayed.agrees and replayed.num_rows


def test_ends_of_weights_whose_config_names_none(
    weights: dict[str, Tensor], config_json: dict[str, Any], materials: VocabularyMaterials
) -> None:
    config = {key: value for key, value in config_json.items() if key != "eos_token_id"}
    for guides in (materials, materials.vocabulary()):
        with closing(client(ModelSource.of(weights, config, guides=guides))) as made:
            assert list(made.built.text.end_ids) == materials.stop_token_ids
    endless = VocabularyMaterials(materials.encoded_vocab, materials.tokenizer_str)
    with pytest.raises(TokenizerError, match="eos_token_id is None"):
        client(ModelSource.of(weights, config, guides=endless))
    with closing(client(ModelSource.of(weights, config_json, guides=endless))) as made:
        assert made.compiler is not None
        assert made.compiler.vocabulary.end_ids == made.built.text.end_ids


def test_what_does_not_fit_the_model_is_said(materials: VocabularyMaterials) -> None:
    assert materials.encoded_vocab is not None
    size = len(materials.encoded_vocab)
    long = VocabularyMaterials(
        [*materials.encoded_vocab, *(f"w{i}" for i in range(999))], materials.tokenizer_str, [1]
    )
    cases: list[tuple[Any, type[Exception], str]] = [
        (5, InputError, "guides is a int"),
        (Vocabulary.from_tokens([b"a", b""], end_ids=[1]), TokenizerError, "has 2 tokens, but the model has"),
        (long, TokenizerError, "is this the model's tokenizer"),
        (VocabularyMaterials(["a b"] * size, None, [10**6]), TokenizerError, "stop_token_ids holds 1000000"),
    ]
    for guides, error, message in cases:
        with pytest.raises(error, match=message):
            client(ModelSource.of(None, guides=guides))
