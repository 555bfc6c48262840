"""Gemma's embeddings, and Gemma 3 with an image encoder: its text model is found in all published names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from support.families import VISION
from weft.errors import ModelError
from weft.models.architectures import parse_config
from weft.models.base import Model, PagedKV
from weft.models.gemma3 import Gemma3Conditional
from weft.models.in_memory import model_in_memory
from weft.models.loading import load_model
from weft.ops.attention import Rows
from weft.registry import load

SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 40,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "sliding_window": 9,
    "layer_types": ["sliding_attention", "full_attention"],
}
TOKENS = torch.arange(3, 33)[None]


@torch.inference_mode()
def logits_of(model: Model) -> Tensor:
    kv = PagedKV.for_model(model, 9, 4)
    rows = Rows(torch.arange(1, 9, dtype=torch.int32)[None], torch.tensor([0]), TOKENS.shape[1])
    return model.logits(model.forward(TOKENS, kv, rows).last)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_factor_of_embeddings_has_the_dtype_of_weights(dtype: str, tied: bool, tmp_path: Path) -> None:
    config = transformers.GemmaConfig(**SMALL, tie_word_embeddings=tied)
    network = transformers.GemmaForCausalLM(config).to(getattr(torch, dtype))
    network.save_pretrained(tmp_path)
    model = load_model(tmp_path, dtype=dtype)
    factor = network.model.embed_tokens.embed_scale.to(getattr(torch, dtype)).item()
    assert model.config.embedding_scale == factor
    assert (factor == 6.3125) == (dtype == "bfloat16"), "the root of 40 is 6.3246"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any], dict[str, Tensor]]:
    """A Gemma 3 with an image encoder, its config.json and its tensors."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("gemma3")
    text = {**SMALL, "final_logit_softcapping": 0.1}
    config = transformers.Gemma3Config(text_config=text, vision_config=VISION)
    network = transformers.Gemma3ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.2)
    network.save_pretrained(path)
    return network, json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors")


def new_name(name: str) -> str:
    """A tensor's name since transformers 4.52."""
    name = name.replace("language_model.model.", "language_model.").replace(
        "language_model.lm_head.", "lm_head."
    )
    return name if name.startswith(("model.", "lm_head.")) else f"model.{name}"


def old_name(name: str) -> str:
    """A tensor's name before transformers 4.52."""
    name = name.removeprefix("model.")
    if name.startswith("lm_head."):
        return f"language_model.{name}"
    if name.startswith("language_model.") and not name.startswith(
        ("language_model.model.", "language_model.lm_head.")
    ):
        return name.replace("language_model.", "language_model.model.", 1)
    return name


@pytest.mark.parametrize("name_of", [new_name, old_name])
def test_the_text_model_is_found_by_new_and_old_names(
    name_of: Callable[[str], str], saved: tuple[Any, dict[str, Any], dict[str, Tensor]]
) -> None:
    network, config, stored = saved
    tensors = {name_of(name): tensor for name, tensor in stored.items()}
    assert any("vision_tower." in name for name in tensors)
    model = model_in_memory(tensors, config)
    assert isinstance(model, Gemma3Conditional)
    with torch.inference_mode():
        wanted = network(input_ids=TOKENS).logits
    torch.testing.assert_close(logits_of(model), wanted, rtol=1e-4, atol=1e-4)
    # The embedding is the output projection, whether or not the file repeats it.
    head = {name_of("lm_head.weight"): network.lm_head.weight.detach()}
    assert torch.equal(logits_of(model_in_memory(tensors | head, config)), logits_of(model))
    other = {name: 2 * tensor for name, tensor in head.items()}
    apart = model_in_memory(tensors | other, {**config, "tie_word_embeddings": False})
    torch.testing.assert_close(logits_of(apart), 2 * wanted, rtol=1e-4, atol=2e-4)


def test_missing_and_other_tensors_are_refused_by_their_stored_names(
    saved: tuple[Any, dict[str, Any], dict[str, Tensor]],
) -> None:
    _, config, stored = saved
    tensors = {old_name(name): tensor for name, tensor in stored.items()}
    with pytest.raises(ModelError, match=r"unexpected tensors 'audio_tower.weight'"):
        model_in_memory({**tensors, "audio_tower.weight": torch.zeros(2)}, config)
    del tensors["language_model.model.norm.weight"]
    with pytest.raises(ModelError, match=r"no tensor 'language_model.model.norm.weight'"):
        model_in_memory(tensors, config)
    with pytest.raises(ModelError, match=r"'text_config' is 3; it must be an object"):
        parse_config({**config, "text_config": 3}, "config.json")


@pytest.mark.parametrize("name", ["GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"])
def test_attention_to_later_tokens_is_left_to_transformers_code(name: str) -> None:
    data = {**SMALL, "architectures": [name], "use_bidirectional_attention": True}
    with pytest.raises(ModelError, match=r"'use_bidirectional_attention' is True; weft runs False"):
        load("models", name).parse_config(data, "config.json")
