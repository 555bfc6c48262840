"""Loading: every way a checkpoint may be stored, and every way it may be wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.activations import activations_of
from support.engine.random_model import random_model
from support.loading_peak import PEAK
from weft import _core
from weft.config import package_model_path
from weft.core.request import OWN_NAMES
from weft.engine.admission import can_grow, shorten
from weft.errors import ModelError
from weft.models import loading
from weft.models.architectures import how_it_runs, parse_config, read_config
from weft.models.base import Model, PagedKV
from weft.models.config import ModelConfig, parse_decoder
from weft.models.dtypes import with_dtype, with_dtype_of
from weft.models.llama import Llama
from weft.models.loading import check_weights, load_model
from weft.models.random_weights import RandomWeights
from weft.models.stored import MappedFiles
from weft.ops import packing
from weft.ops.attention import Rows
from weft.ops.formats import Activations, Format
from weft.ops.linear import Linear
from weft.ops.rows import embed

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "dtype": "float32",
    "tie_word_embeddings": False,
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A small Llama with its own output projection."""
    torch.manual_seed(0)
    sizes = {k: v for k, v in CONFIG.items() if k not in ("architectures", "dtype")}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).save_pretrained(tmp_path)
    return tmp_path


def logits(model: Model, count: int = 12) -> Tensor:
    kv = PagedKV.for_model(model, 5, 4)
    rows = Rows(torch.tensor([[3, 1, 4]], dtype=torch.int32), torch.tensor([0]), count)
    with torch.inference_mode():
        return model.logits(model.forward(torch.arange(count)[None] % 50, kv, rows).last)


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    data = json.loads(path.read_text())
    data.update(changes)
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not ...}))


def edit_weights(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({k: v.contiguous() for k, v in tensors.items()}, path)


def test_shards_load_as_one_file_does(checkpoint: Path, tmp_path: Path) -> None:
    sharded = tmp_path / "sharded"
    transformers.LlamaForCausalLM.from_pretrained(checkpoint).save_pretrained(sharded, max_shard_size="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert torch.equal(logits(load_model(sharded)), logits(load_model(checkpoint)))


def test_tied_embeddings_need_no_output_projection(checkpoint: Path) -> None:
    edit_config(checkpoint, tie_word_embeddings=True)
    kept = load_model(checkpoint)
    edit_weights(checkpoint, lambda t: t.pop("lm_head.weight"))
    assert torch.equal(logits(load_model(checkpoint)), logits(kept))


def test_half_tensors_stay_as_they_are_and_multiply_in_float32(checkpoint: Path) -> None:
    edit_weights(checkpoint, lambda t: t.update({k: v.half() for k, v in t.items()}))
    model = load_model(checkpoint)
    assert model.embedding.dtype == torch.float16
    assert model.config.dtype == logits(model).dtype == torch.float32
    widened = load_model(checkpoint, dtype="float32")
    assert widened.embedding.dtype == torch.float32
    assert torch.equal(logits(widened), logits(model))


def test_tensors_of_several_dtypes_are_each_read_as_they_are(checkpoint: Path) -> None:
    down = "model.layers.0.mlp.down_proj.weight"
    edit_weights(checkpoint, lambda t: t.update({down: t[down].bfloat16()}))
    mixed = logits(load_model(checkpoint, activation_dtype="float32"))
    edit_weights(checkpoint, lambda t: t.update({down: t[down].float()}))
    assert torch.equal(logits(load_model(checkpoint)), mixed)


@pytest.mark.parametrize(
    ("dtype", "config", "stored", "wanted"),
    [
        ("auto", "float32", torch.float32, torch.float32),
        ("auto", "bfloat16", torch.float32, torch.bfloat16),
        ("auto", "float32", torch.bfloat16, torch.bfloat16),
        ("auto", "bfloat16", torch.float16, torch.bfloat16),
        ("float16", "bfloat16", torch.float32, torch.float16),
        ("float32", "bfloat16", torch.float16, torch.float32),
    ],
)
def test_the_dtype_on_a_cpu_is_that_of_matrices_alone(
    dtype: str, config: str, stored: torch.dtype, wanted: torch.dtype, checkpoint: Path
) -> None:
    """What was chosen, or what config.json says if that has 16 bits, or what is stored."""
    edit_config(checkpoint, dtype=config)
    edit_weights(checkpoint, lambda t: t.update({k: v.to(stored) for k, v in t.items()}))
    model = load_model(checkpoint, dtype=dtype)
    assert model.embedding.dtype == wanted
    assert model.config.dtype == logits(model).dtype == torch.float32
    assert PagedKV.for_model(model, 2, 4).dtype == torch.float32


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_elsewhere_the_dtype_is_that_of_everything(key: str) -> None:
    """Older files say torch_dtype."""
    data = {**{k: v for k, v in CONFIG.items() if k != "dtype"}, key: "float16"}
    for chosen, wanted in (("auto", torch.float16), ("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        config = with_dtype(parse_decoder(data, "c"), chosen, torch.device("cuda"))
        assert config.dtype == config.weight_dtype == wanted


def test_products_round_rows_as_is_chosen(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_weights(checkpoint, lambda t: t.update({k: v.bfloat16() for k, v in t.items()}))

    def chosen(model: Model) -> Activations:
        layer = model.layers[0]  # type: ignore[attr-defined]
        assert isinstance(layer.mlp.up, Linear)
        return activations_of(layer.mlp.up)[0]

    exact = load_model(checkpoint, activation_dtype="float32")
    rounds = load_model(checkpoint, activation_dtype="bfloat16")
    assert chosen(exact) is Activations.FLOAT32 and chosen(rounds) is Activations.BFLOAT16
    assert not torch.equal(logits(rounds), logits(exact))
    assert torch.equal(logits(load_model(checkpoint, dtype="float32")), logits(exact))
    torch.testing.assert_close(logits(rounds), logits(exact), rtol=0.05, atol=0.05)
    # Matrices in float16 have more digits.
    half = load_model(checkpoint, dtype="float16", activation_dtype="bfloat16")
    assert chosen(half) is Activations.FLOAT32
    for is_fast, wanted in ((True, Activations.BFLOAT16), (False, Activations.FLOAT32)):
        monkeypatch.setattr(_core, "has_fast_bfloat16", lambda is_fast=is_fast: is_fast)
        assert chosen(load_model(checkpoint)) is wanted


def test_a_dtype_that_is_none_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ModelError, match="dtype 'int8' is none of"):
        load_model(checkpoint, dtype="int8")


def test_rotary_frequencies_saved_with_the_weights_are_ignored(checkpoint: Path) -> None:
    edit_weights(
        checkpoint, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    )
    load_model(checkpoint)


WRONG_WEIGHTS: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "missing": (lambda t: t.pop("model.norm.weight"), r"no tensor 'model.norm.weight'; expected .* \[32\]"),
    "untied": (lambda t: t.pop("lm_head.weight"), r"no tensor 'lm_head.weight'; expected .* \[50, 32\]"),
    "misshapen": (
        lambda t: t.update({"model.embed_tokens.weight": torch.zeros(51, 32)}),
        r"'model.embed_tokens.weight' has shape \[51, 32\]; config.json wants \[50, 32\]",
    ),
    "extra": (lambda t: t.update({"visual.patch": torch.zeros(1)}), "unexpected tensors 'visual.patch'"),
    "bias": (
        lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}),
        "unexpected tensors 'model.layers.0.self_attn.q_proj.bias'",
    ),
    "integers": (
        lambda t: t.update({"model.norm.weight": torch.zeros(32, dtype=torch.int8)}),
        "'model.norm.weight' is I8; expected floating-point weights",
    ),
}


@pytest.mark.parametrize("kind", WRONG_WEIGHTS)
def test_wrong_weights_are_named(kind: str, checkpoint: Path) -> None:
    change, message = WRONG_WEIGHTS[kind]
    edit_weights(checkpoint, change)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(checkpoint)
    assert str(checkpoint) in str(caught.value)


WRONG_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": (
        {"architectures": ["PerceptronLM"]},
        "names PerceptronLM; neither weft nor transformers",
    ),
    "no-architecture": ({"architectures": ...}, "'architectures' is None"),
    "missing": ({"vocab_size": ...}, "'vocab_size' is missing"),
    "not-a-number": ({"hidden_size": "big"}, "'hidden_size' is 'big'; it must be a positive integer"),
    "negative": ({"num_hidden_layers": -1}, "'num_hidden_layers' is -1"),
    "eps": ({"rms_norm_eps": 0}, "'rms_norm_eps' is 0; it must be a positive number"),
    "flag": ({"attention_bias": "yes"}, "'attention_bias' is 'yes'; it must be true or false"),
    "heads": ({"num_key_value_heads": 3}, "'num_key_value_heads' is 3; it must divide the 4"),
    "odd-head": ({"head_dim": 7}, "'head_dim' is 7"),
    "activation": ({"hidden_act": "sulu"}, "'hidden_act' is 'sulu'; weft knows silu"),
    "quantised": ({"quantization_config": {"bits": 4}}, "does not name a method in 'quant_method'; use"),
    "dtype": ({"dtype": "float8"}, "'dtype' is 'float8'; weft runs float32"),
    "rope": (
        {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}},
        "'rope_parameters' has rope_type 'spiral'",
    ),
    "old-rope": (
        {"rope_parameters": ..., "rope_scaling": {"type": "mrope"}},
        "'rope_scaling' has rope_type 'mrope'",
    ),
    "rope-factor": ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters: 'factor' is missing"),
}


def test_values_that_wefts_module_lacks_run_by_transformers_code(checkpoint: Path) -> None:
    edit_config(checkpoint, hidden_act="mish")
    model = load_model(checkpoint)
    module, reason = how_it_runs(model)
    assert "transformers' LlamaForCausalLM" in module and "'hidden_act' is 'mish'" in reason
    oracle = transformers.LlamaForCausalLM.from_pretrained(checkpoint).eval()
    with torch.inference_mode():
        wanted = oracle(torch.arange(12)[None]).logits
    torch.testing.assert_close(logits(model), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", WRONG_CONFIGS)
def test_what_a_config_says_wrongly_is_named(kind: str, checkpoint: Path) -> None:
    changes, message = WRONG_CONFIGS[kind]
    edit_config(checkpoint, **changes)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(checkpoint)
    assert str(checkpoint / "config.json") in str(caught.value)


def test_quantised_checkpoints_are_refused_for_transformers_code(checkpoint: Path) -> None:
    settings = {"quant_method": "awq"}
    edit_config(checkpoint, architectures=["StableLmForCausalLM"], quantization_config=settings)
    message = (
        r"config.json: 'quantization_config' says that it is quantised with 'awq', .* use the original model"
    )
    with pytest.raises(ModelError, match=message):
        load_model(checkpoint)


def test_a_lora_adapter_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    with pytest.raises(ModelError, match=r"LoRA adapter .* merge it into its base model org/base"):
        load_model(tmp_path)


def test_missing_and_broken_files_are_named(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config.json: there is no such file"):
        load_model(tmp_path / "nowhere")
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(b"not safetensors at all")
    with pytest.raises(ModelError, match=r"model.safetensors: can't be read as safetensors"):
        load_model(checkpoint)
    weights.unlink()
    with pytest.raises(ModelError, match=r"has neither model.safetensors nor"):
        load_model(checkpoint)
    (checkpoint / "pytorch_model.bin").touch()
    with pytest.raises(ModelError, match=r"only as .bin.*convert to safetensors"):
        load_model(checkpoint)
    index = checkpoint / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"model.embed_tokens.weight": "model-1.safetensors"}}')
    with pytest.raises(
        ModelError, match=r"model-1.safetensors: there is no such file, though the index names it"
    ):
        load_model(checkpoint)
    index.write_text("{}")
    with pytest.raises(ModelError, match=r"'weight_map' is missing"):
        load_model(checkpoint)
    (checkpoint / "config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"holds a JSON list"):
        load_model(checkpoint)
    (checkpoint / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"can't be read as JSON"):
        load_model(checkpoint)


def test_an_index_that_names_the_wrong_shard(checkpoint: Path) -> None:
    names = dict.fromkeys(load_file(checkpoint / "model.safetensors"), "model.safetensors")
    edit_weights(checkpoint, lambda t: t.pop("model.norm.weight"))
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(ModelError, match=r"'model.norm.weight', which the index places here, can't be read"):
        load_model(checkpoint)


def test_a_prompt_that_is_too_long_has_advice_that_helps() -> None:
    plain = parse_decoder({**CONFIG, "max_position_embeddings": 4096}, "c")
    assert shorten(can_grow(plain, 1024), OWN_NAMES).endswith("or raise EngineConfig.max_seq_len")
    assert shorten(can_grow(plain, 4096), OWN_NAMES) == "shorten the prompt: the model has no more positions"


def test_random_models_depend_on_their_seed_alone() -> None:
    config = ModelConfig("Qwen3ForCausalLM", 50, 32, 48, 2, 4, 2, 8, 64, qk_norm=True)
    a, b, c = (logits(random_model(config, seed)) for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert a.isfinite().all()


def test_large_weights_multiply_as_small_ones_do() -> None:
    config = ModelConfig("LlamaForCausalLM", 1100, 1024, 1100, 1, 8, 4, 128, 64, tie_word_embeddings=True)
    model = random_model(config, 3)
    x = torch.randn(5, 1024)
    with torch.inference_mode():
        torch.testing.assert_close(
            model.logits(x, is_normed=True),
            x @ embed(model.embedding, torch.arange(1100), torch.float32).T,
            atol=1e-4,
            rtol=1e-4,
        )


def test_the_embedded_model_is_read_as_transformers_reads_it() -> None:
    path = package_model_path()
    model = load_model(path)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        wanted = oracle(torch.arange(12)[None]).logits
    torch.testing.assert_close(logits(model), wanted, atol=1e-4, rtol=1e-4)


CONTRADICTIONS: dict[str, tuple[dict[str, Any], Callable[[dict[str, Tensor]], object], str]] = {
    "size": (
        {"intermediate_size": 64},
        lambda t: None,
        r"gate_proj.weight' has shape \[48, 32\]; config.json wants \[64, 32\]. 'intermediate_size' is 64 there, "
        r"where the tensor has 48",
    ),
    "heads": (
        {"num_key_value_heads": 4},
        lambda t: None,
        "'num_key_value_heads' times 'head_dim' is 32 there",
    ),
    "layers": (
        {"num_hidden_layers": 3},
        lambda t: None,
        "'num_hidden_layers' in config.json is 3, .* no layer 2",
    ),
    "more-layers": (
        {"num_hidden_layers": 1},
        lambda t: None,
        "unexpected .*'num_hidden_layers' .* is 1, .* more",
    ),
    "bias": ({"attention_bias": True}, lambda t: None, "q_proj.bias'.*wants biases .'attention_bias'"),
    "tie": ({}, lambda t: t.pop("lm_head.weight"), "'tie_word_embeddings' in config.json must be true"),
    "float8": (
        {},
        lambda t: t.update({"lm_head.weight": t["lm_head.weight"].to(torch.float8_e4m3fn)}),
        "'lm_head.weight' is F8_E4M3; expected floating-point weights, of .*use the original model",
    ),
    "scales": (
        {},
        lambda t: t.update({"model.layers.0.mlp.up_proj.weight_scale": torch.ones(1)}),
        "unexpected .* The weights are quantised, and 'quantization_config' in config.json does not say how",
    ),
    "packed": (
        {},
        lambda t: t.update(
            {"model.layers.0.mlp.up_proj.qweight": t.pop("model.layers.0.mlp.up_proj.weight")}
        ),
        "no tensor .* The weights are quantised, and 'quantization_config' in config.json does not say how",
    ),
}


@pytest.mark.parametrize("kind", [*CONTRADICTIONS, *WRONG_WEIGHTS])
def test_nothing_is_read_or_allocated_before_weights_are_refused(
    kind: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors name the file, the key and what to do."""
    if kind in CONTRADICTIONS:
        changes, change, message = CONTRADICTIONS[kind]
        edit_config(checkpoint, **changes)
    else:
        change, message = WRONG_WEIGHTS[kind]
    edit_weights(checkpoint, change)

    def fail(*_: object) -> None:
        raise AssertionError("nothing may be read or allocated")

    monkeypatch.setattr(MappedFiles, "take", fail)
    monkeypatch.setattr(packing, "reserved", fail)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(checkpoint)
    assert str(checkpoint) in str(caught.value)


def test_code_of_the_models_own_is_refused(checkpoint: Path) -> None:
    edit_config(
        checkpoint, architectures=["OwnForCausalLM"], auto_map={"AutoModel": "modeling_own.OwnForCausalLM"}
    )
    with pytest.raises(
        ModelError, match=r"names OwnForCausalLM.* code is in the directory, and weft runs no code"
    ):
        load_model(checkpoint)
    edit_config(checkpoint, architectures=["LlamaForCausalLM"])
    load_model(checkpoint)


def test_weights_that_do_not_fit_in_memory_are_refused(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "available_bytes", lambda: 10_000)
    with pytest.raises(ModelError, match=r"no memory for a model of this size: its weights need .* are free"):
        load_model(checkpoint)


def test_headers_say_what_will_be_in_memory(checkpoint: Path) -> None:
    """As measured: of a model with an output projection of its own, and of one that shares the embedding's."""
    for changes, parameters in (({}, 18_720), ({"tie_word_embeddings": True}, 18_720 - 50 * 32)):
        edit_config(checkpoint, **changes)
        model_class, config = read_config(checkpoint)
        model, headers = check_weights(
            model_class, with_dtype(config, "bfloat16", torch.device("cpu")), checkpoint
        )
        assert headers.num_parameters == parameters
        assert headers.stored_bytes == 4 * parameters
        norms = 32 * 5
        assert headers.num_bytes == 2 * (parameters - norms) + 4 * norms
        assert headers.matrix_dtypes == {torch.bfloat16} and headers.num_files == 1
        assert model.device.type == "meta"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("is_tied", [False, True])
def test_the_peak_of_memory_is_that_of_the_weights(is_tied: bool, tmp_path: Path) -> None:
    """The embedding of a model that is not tied stays in the file's pages."""
    data = {**CONFIG, "vocab_size": 20_001, "hidden_size": 512, "intermediate_size": 2048}
    data |= {"num_hidden_layers": 24, "dtype": "bfloat16", "tie_word_embeddings": is_tied}
    (tmp_path / "config.json").write_text(json.dumps(data))
    config = with_dtype(parse_decoder(data, "c"), "auto", torch.device("cuda"))
    stored: dict[str, Tensor] = {}

    class Recorded(RandomWeights):
        def take(self, name: str, *shape: int) -> Tensor:
            stored[name] = torch.zeros(shape, dtype=torch.bfloat16)
            return torch.empty(shape, device="meta")

    with torch.inference_mode():
        Llama(config, Recorded(config, 0, "meta"))
    save_file(stored, tmp_path / "model.safetensors")
    num_bytes = sum(tensor.numel() * 2 for tensor in stored.values())
    run = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path)], capture_output=True, text=True, timeout=300, check=True
    )
    assert num_bytes * 0.7 < int(run.stdout) < num_bytes * 1.1


@pytest.mark.parametrize(
    "architecture", ["Gemma3ForConditionalGeneration", "Qwen3_5ForConditionalGeneration"]
)
def test_quantized_checkpoints_with_an_image_encoder_are_refused(architecture: str) -> None:
    config = transformers.AutoConfig.for_model(
        {"Gemma3ForConditionalGeneration": "gemma3", "Qwen3_5ForConditionalGeneration": "qwen3_5"}[
            architecture
        ]
    ).to_dict()
    data = {**config, "architectures": [architecture], "quantization_config": {"quant_method": "hqq"}}
    with pytest.raises(ModelError, match="'quantization_config' says that it is quantised with HQQ; use"):
        parse_config(data, "config.json")


def test_the_part_that_a_module_lacks_is_named_for_quantised_checkpoints_too() -> None:
    settings = {"quant_method": "fp8"}
    data = {**CONFIG, "rope_scaling": {"rope_type": "unknown"}, "quantization_config": settings}
    with pytest.raises(ModelError, match=r"rope.*unknown.*needs one that is not quantised"):
        parse_config(data, "config.json")


@pytest.mark.parametrize("draft", ["bfloat16", "float32"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_dense_draft_model_has_the_dtypes_of_a_quantised_target(draft: str, device: str) -> None:
    """On a CPU activations are float32, and the draft keeps the dtype of its weights."""
    on = torch.device(device)
    quantised = {"quantization_config": {"quant_method": "awq"}, "dtype": "float16"}
    target = with_dtype(parse_decoder({**CONFIG, **quantised}, "c"), "auto", on)
    config = with_dtype_of(parse_decoder({**CONFIG, "dtype": draft}, "c"), target, on)
    dtypes = config.dtype, config.weight_dtype
    kept = None if draft == "float32" else torch.bfloat16
    assert dtypes == ((torch.float16, torch.float16) if device == "cuda" else (torch.float32, kept))


@pytest.mark.parametrize("inputs", [64, 1024])
def test_random_numbers_in_mxfp4_have_the_spread_of_others(inputs: int) -> None:
    """Their scale is a power of 2."""
    data = {**CONFIG, "dtype": "bfloat16", "quantization_config": {"quant_method": "mxfp4"}}
    weights = RandomWeights(parse_decoder(data, "c", quantizations=["mxfp4"]), 0)
    matrices = weights.take_matrices("experts", 2, 48, inputs)
    spread = torch.stack([matrices[expert].dequantized() for expert in range(2)]).std()
    assert matrices[1].shape == (48, inputs)
    assert matrices[1].format is Format.MXFP4
    assert 0.45 * inputs**-0.5 < spread < inputs**-0.5


def test_random_weights_have_no_list_of_tensors() -> None:
    with pytest.raises(ModelError, match="random weights have no list of tensors"):
        RandomWeights(parse_decoder(CONFIG, "c"), 0).take_all()
