"""Rotary embedding against transformers: frequencies, tables, and how config.json is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from weft.errors import ModelError
from weft.models.fields import Fields, UnsupportedConfig
from weft.models.gemma3 import Gemma3
from weft.models.phi3 import Phi3
from weft.models.qwen2 import Qwen2
from weft.models.rope import FULL, SLIDING, Llama3Scaling, Rope, parse_rope, yarn_growth

LENGTH = 256
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": YARN,
    "yarn-by-length": {**YARN, "factor": None},
    "yarn-truncate": {**YARN, "truncate": False, "beta_fast": 20.0, "beta_slow": 2.0},
    "yarn-mscale": {**YARN, "mscale": 0.8, "mscale_all_dim": 0.3},
    "yarn-no-mscale": {**YARN, "mscale": 0.8, "mscale_all_dim": 0},
    "yarn-attention": {**YARN, "attention_factor": 1.7},
    "yarn-at-once": {**YARN, "original_max_position_embeddings": 6},
    "longrope": {"rope_type": "longrope", "original_max_position_embeddings": 64},
    "longrope-factor": {"rope_type": "longrope", "factor": 7.0, "original_max_position_embeddings": 64},
    "longrope-short": {"rope_type": "longrope", "original_max_position_embeddings": 512},
    "longrope-attention": {
        "rope_type": "longrope",
        "attention_factor": 1.2,
        "original_max_position_embeddings": 64,
    },
}


def read(data: dict[str, Any], head_dim: int, **how: Any) -> Rope:
    return parse_rope(Fields(data, "c"), head_dim, data["max_position_embeddings"], **how)


def config_of(head_dim: int, parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A config in the form of transformers 5. longrope gets its factors."""
    rotated = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    if parameters["rope_type"] == "longrope":
        short, long = ([a + i / 4 for i in range((rotated + 1) // 2)] for a in (1.0, 2.0))
        parameters = {**parameters, "short_factor": short, "long_factor": long}
    sizes = {"head_dim": head_dim, "hidden_size": 4 * head_dim, "num_attention_heads": 4}
    return {
        **sizes,
        "max_position_embeddings": LENGTH,
        "rope_parameters": {"rope_theta": 5e3, **parameters},
        **more,
    }


@pytest.mark.parametrize("longest", [48, LENGTH, 1000])
@pytest.mark.parametrize("fraction", [None, 0.5, 0.75])
@pytest.mark.parametrize("head_dim", [8, 64, 80, 128])
@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_are_those_of_transformers(
    name: str, head_dim: int, fraction: float | None, longest: int
) -> None:
    parameters = SCALINGS[name] if fraction is None else {**SCALINGS[name], "partial_rotary_factor": fraction}
    data = config_of(head_dim, parameters)
    rope = read(data, head_dim, partial=True)
    make = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
    wanted, factor = make(LlamaConfig(**data), torch.device("cpu"), seq_len=longest)
    torch.testing.assert_close(rope.frequencies(head_dim, longest), wanted, rtol=1e-6, atol=0)
    assert rope.scaling.attention_factor == pytest.approx(factor, rel=1e-12)
    assert rope.num_pairs(head_dim) == len(wanted) == int(head_dim * (fraction or 1.0)) // 2


@pytest.mark.parametrize("name", ["default", *SCALINGS])
def test_tables_are_those_of_transformers(name: str) -> None:
    """transformers chooses by the longest position of a batch, here by the last one of all."""
    data = config_of(64, SCALINGS.get(name, {"rope_type": "default"}))
    for length in (40, LENGTH, 600):
        cos, sin = LlamaRotaryEmbedding(LlamaConfig(**data))(torch.empty(0), torch.arange(length)[None])
        table = read(data, 64).table(64, LENGTH, longest=length)
        assert table.shape == (max(LENGTH, length), 32, 2)
        torch.testing.assert_close(table[:length, :, 0], cos[0, :, :32], rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(table[:length, :, 1], sin[0, :, :32], rtol=1e-5, atol=1e-4)


def test_the_longest_text_is_by_default_as_long_as_the_table() -> None:
    rope = read(config_of(64, SCALINGS["longrope"]), 64)
    assert torch.equal(rope.table(64, 200), rope.table(64, 200, longest=200))
    assert torch.equal(rope.table(64, 200)[:64], rope.table(64, 64, longest=65)[:64])
    assert not torch.equal(rope.table(64, 200)[:64], rope.table(64, 64))


def test_a_table_on_meta_has_a_shape_only() -> None:
    rope = read(config_of(64, {**YARN, "partial_rotary_factor": 0.75}), 64, partial=True)
    table = rope.table(64, 100, "meta")
    assert table.is_meta
    assert table.shape == (100, 24, 2)


def test_an_odd_number_of_rotated_elements_is_rounded_up() -> None:
    """As transformers: 7 elements have 4 frequencies, which are powers of a seventh."""
    rope = Rope(100.0, fraction=0.7)
    assert rope.num_pairs(10) == 4
    torch.testing.assert_close(rope.frequencies(10), 100.0 ** (-torch.arange(0, 7, 2) / 7))


def test_files_of_both_generations_of_transformers_are_read() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    length = {"original_max_position_embeddings": 32}
    wanted = Rope(500.0, Llama3Scaling(factor=8.0, low=1.0, high=4.0, original=32))
    sizes = {"max_position_embeddings": LENGTH}
    for data in (
        {"rope_theta": 500.0, "rope_scaling": {"type": "llama3", **scaling, **length}},
        {"rope_theta": 500.0, "rope_scaling": {"rope_type": "llama3", **scaling}, **length},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, **scaling, **length}},
    ):
        assert read({**sizes, **data}, 64) == wanted
    assert read({**sizes, "rope_theta": 9.0, "rope_scaling": None}, 64) == Rope(9.0)
    assert read(sizes, 64) == Rope(1e4)


@pytest.mark.parametrize("kind", ["llama3", "yarn", "longrope"])
def test_the_original_length_beside_the_parameters_comes_first(kind: str) -> None:
    """As transformers does it; without any length it is the model's."""
    data = config_of(16, SCALINGS[kind], original_max_position_embeddings=128)
    assert read(data, 16) == read(
        config_of(16, {**SCALINGS[kind], "original_max_position_embeddings": 128}), 16
    )
    config = LlamaConfig(**data)
    wanted, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=100)
    torch.testing.assert_close(read(data, 16).frequencies(16, 100), wanted, rtol=1e-6, atol=0)
    assert read(data, 16).scaling.attention_factor == pytest.approx(factor)
    without = {key: value for key, value in SCALINGS[kind].items() if not key.startswith("original")}
    assert read(config_of(16, without), 16) == read(
        config_of(16, without, original_max_position_embeddings=LENGTH), 16
    )


def test_a_part_of_each_head_is_rotated_only_by_architectures_that_do_it() -> None:
    """transformers' Llama ignores the key in some configs, and fails in others."""
    for where in ({"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5}}):
        data = {"max_position_embeddings": LENGTH, **where}
        assert read(data, 64, partial=True).num_pairs(64) == 16
        with pytest.raises(UnsupportedConfig, match=r"'partial_rotary_factor' is 0\.5; weft runs 1"):
            read(data, 64)
    both = {"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.25}}
    assert read({"max_position_embeddings": LENGTH, **both}, 64, partial=True).fraction == 0.25
    assert read(config_of(64, {"rope_type": "default", "partial_rotary_factor": 1.0}), 64) == Rope(5e3)


def test_phi3s_parameters_are_read_as_transformers_reads_them() -> None:
    factors = {"short_factor": [1.0 + i for i in range(6)], "long_factor": [2.0 + i for i in range(6)]}
    data = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "max_position_embeddings": LENGTH,
        "original_max_position_embeddings": 64,
        "partial_rotary_factor": 0.75,
        "rope_theta": 1e4,
        "rope_scaling": {"type": "longrope", **factors},
    }
    rope, config = read(data, 16, partial=True), Phi3Config(**data)
    for longest in (64, 65):
        wanted, factor = ROPE_INIT_FUNCTIONS["longrope"](config, torch.device("cpu"), seq_len=longest)
        torch.testing.assert_close(rope.frequencies(16, longest), wanted, rtol=1e-6, atol=0)
        assert rope.scaling.attention_factor == pytest.approx(factor)
    sizes = dict.fromkeys(("vocab_size", "intermediate_size", "num_hidden_layers"), 2)
    for name in ("su", "yarn", "longrope"):  # two of them are old names
        old = {**sizes, **data, "rope_scaling": {"type": name, **factors}}
        assert Phi3.parse_config(old, "c").rope == rope


GEMMA3 = {
    "old": {
        "rope_theta": 3e5,
        "rope_local_base_freq": 2e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "old-defaults": {},
    "old-theta": {"rope_theta": 3e5},
    "new": {
        "rope_parameters": {
            FULL: {"rope_type": "linear", "rope_theta": 3e5, "factor": 8.0},
            SLIDING: {"rope_type": "default", "rope_theta": 2e4},
        }
    },
    "new-yarn": {
        "rope_parameters": {FULL: {**YARN, "rope_theta": 3e5}, SLIDING: {**YARN, "rope_theta": 2e4}},
    },
    "new-mixed": {
        "rope_theta": 3e5,
        "rope_local_base_freq": 2e4,
        "rope_parameters": {
            FULL: {"rope_type": "linear", "factor": 8.0},
            SLIDING: {"rope_type": "default"},
        },
    },
}


@pytest.mark.parametrize("name", GEMMA3)
def test_layers_of_two_kinds_have_their_parameters(name: str) -> None:
    data = {"max_position_embeddings": LENGTH, "head_dim": 64, **GEMMA3[name]}
    config = Gemma3TextConfig(**data, num_hidden_layers=6)
    for kind in (FULL, SLIDING):
        rope = read({**Gemma3.defaults, **data}, 64, layer_type=kind)
        parameters = config.rope_parameters[kind]
        if parameters["rope_type"] == "default":
            assert rope == Rope(parameters["rope_theta"])
            continue
        make = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
        wanted, factor = make(config, torch.device("cpu"), layer_type=kind)
        torch.testing.assert_close(rope.frequencies(64), wanted, rtol=1e-6, atol=0)
        assert rope.scaling.attention_factor == pytest.approx(factor)


LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 8}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "list": ({"rope_parameters": [1]}, "c: 'rope_parameters' is .1.; it must be an object"),
    "factor": ({"rope_parameters": {"rope_type": "dynamic"}}, "c: rope_parameters: 'factor' is missing"),
    "type": ({"rope_parameters": {"rope_type": ["yarn"]}}, "has rope_type .'yarn'.; weft knows 'linear'"),
    "theta": ({"rope_theta": 1.0, "rope_scaling": YARN}, "'yarn', which needs a rope_theta above 1"),
    "partial": (
        {"partial_rotary_factor": 1.5},
        "'partial_rotary_factor' is 1.5; it must be a part of the 16",
    ),
    "no-part": (
        {"partial_rotary_factor": 0.01},
        "'partial_rotary_factor' is 0.01; it must be a part of the 16",
    ),
    "bounds": (
        {"rope_scaling": {**SCALINGS["llama3"], "low_freq_factor": 4.0}},
        "'low_freq_factor' is 4.0; it must be less than 'high_freq_factor', 4.0",
    ),
    "factors": (
        {"rope_scaling": {**LONG, "long_factor": [1.0] * 7}},
        "rope_scaling: 'long_factor' must be a list of 8 numbers, one for each rotated pair",
    ),
    "zero": (
        {"rope_scaling": {**LONG, "short_factor": [0.0] * 8}},
        "'short_factor' is 0.0; it must be a pos",
    ),
    "original": (
        {"rope_scaling": {**LONG, "original_max_position_embeddings": 1}},
        "'original_max_position_embeddings' is 1; it must be larger",
    ),
    "kinds": (
        {"rope_parameters": {FULL: {"rope_type": "default"}}},
        "'rope_parameters' has an object for each kind of layers",
    ),
    "kind": (
        {"rope_parameters": {FULL: "default"}},
        "'rope_parameters' has an object for each kind of layers",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_parameters_are_refused(name: str) -> None:
    changes, message = WRONG[name]
    with pytest.raises(ModelError, match=message):
        read({"max_position_embeddings": LENGTH, **changes}, 16, partial=True)


def test_a_kind_of_layers_without_an_object_is_refused() -> None:
    data = {"max_position_embeddings": LENGTH, "rope_parameters": {FULL: "default"}}
    with pytest.raises(
        ModelError, match="c: rope_parameters: 'full_attention' is 'default'; it must be an o"
    ):
        read(data, 16, layer_type=FULL)


def test_parameters_for_all_layers_are_refused_where_there_are_two_kinds() -> None:
    """transformers ignores them."""
    data = {"max_position_embeddings": LENGTH, "rope_parameters": {"rope_type": "default", "rope_theta": 3.0}}
    for kind in (FULL, SLIDING):
        with pytest.raises(UnsupportedConfig, match="has no object for each kind of layers"):
            read(data, 16, layer_type=kind)


def test_the_growth_of_scores_for_longer_texts() -> None:
    assert yarn_growth(1.0) == yarn_growth(0.5) == 1.0
    assert yarn_growth(40.0) == pytest.approx(1.3688879)
    assert yarn_growth(40.0, 0.0) == 1.0


def test_parameters_under_both_keys_are_refused_if_they_differ() -> None:
    new = {"rope_type": "default", "rope_theta": 5e5}
    old = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    fields = Fields({"rope_parameters": new, "rope_scaling": old}, "config.json")
    with pytest.raises(ModelError, match="'rope_scaling' is there, and so is 'rope_parameters'; keep one"):
        parse_rope(fields, 64, 32768)
    both = {**old, "rope_theta": 5e5}
    fields = Fields({"rope_parameters": both, "rope_scaling": old}, "config.json")
    assert parse_rope(fields, 64, 32768) == parse_rope(Fields({"rope_parameters": both}, ""), 64, 32768)


def test_yarn_extends_the_length_of_a_model() -> None:
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "vocab_size": 10,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 32768,
    }
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert Qwen2.parse_config(config, "").max_position_embeddings == 32768
    assert Qwen2.parse_config({**config, "rope_scaling": scaling}, "").max_position_embeddings == 131072
