"""Each method's tensors become rows of blocks with the numbers that the format's description gives."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.quantised import CASES, Case
from weft.errors import ModelError
from weft.models.checkpoint import META
from weft.models.config import ModelConfig, parse_decoder
from weft.models.in_memory import WeightsInMemory
from weft.models.quantized.method import WEIGHT
from weft.models.stored import parameters_of
from weft.ops.formats import Format
from weft.ops.quantized import Quantized

HERE = Path("here")
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "dtype": "float16",
}
MODULE = "model.layers.0.mlp.up_proj"
NAME = f"{MODULE}{WEIGHT}"
SHAPES = [(136, 256), (8, 128), (24, 1152)]
BLOCKS = {
    "awq-128": Format.INT4_128,
    "awq-64": Format.INT4_64,
    "awq-32": Format.INT4_32,
    "awq-all": Format.INT4_128,
    "gptq-64-plain": Format.INT4_64,
    "gptq-8": Format.INT8_128,
    "gptq-8-v2": Format.INT8_32,
    "fp8-tensor": Format.FP8,
    "int8-channel": Format.INT8_128,
    "int8-group": Format.INT8_32,
    "packed-channel": Format.INT4_128,
    "packed-8": Format.INT8_128,
}


def config_of(case: Case) -> ModelConfig:
    return parse_decoder({**CONFIG, "quantization_config": case.settings}, "config.json")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_the_description(name: str, shape: tuple[int, int]) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    tensors = case.write(MODULE, *shape)
    wanted = case.numbers(tensors, MODULE, *shape)
    weights = WeightsInMemory(tensors, config_of(case), torch.device("cpu"), HERE)
    got = weights.take_matrix(NAME, *shape)
    assert isinstance(got, Quantized) and got.shape == shape
    assert got.format is BLOCKS.get(name, got.format)
    assert (got.order is not None) == name.endswith("mixed")
    assert torch.equal(got.dequantized(torch.float32), wanted)
    assert torch.equal(got[3:7].dequantized(torch.float32), wanted[3:7])
    weights.finish()


@pytest.mark.parametrize("name", ["gptq-mixed", "packed-mixed"])
def test_groups_of_different_sizes_give_numbers(name: str) -> None:
    """No blocks fit them."""
    case, shape = CASES[name], (136, 256)
    tensors = case.write(MODULE, *shape)
    groups = next(tensor for part, tensor in tensors.items() if part.endswith("g_idx"))
    groups[0] = (groups[0] + 1) % (groups.max() + 1)
    weights = WeightsInMemory(tensors, config_of(case), torch.device("cpu"), HERE)
    got = weights.take_matrix(NAME, *shape)
    assert isinstance(got, torch.Tensor)
    assert got.dtype is (torch.float16 if name.startswith("gptq") else torch.bfloat16), "that of factors"
    assert torch.equal(got, case.numbers(tensors, MODULE, *shape).to(got.dtype))
    assert weights.num_widened == 1


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("awq-64", torch.float16),
        ("gptq-8", torch.float16),
        ("gptq-mixed", torch.float16),
        ("packed-32-zeros", torch.bfloat16),
        ("int8-group", torch.bfloat16),
        ("fp8-blocks", torch.float32),
        ("fp8-blocks-bf16", torch.bfloat16),
        ("fp8-blocks-e8m0", torch.bfloat16),
    ],
)
def test_matrices_that_must_be_numbers_have_the_dtype_of_their_factors(name: str, dtype: torch.dtype) -> None:
    case, shape = CASES[name], (136, 256)
    tensors = case.write(MODULE, *shape)
    for device, wanted in (("cpu", dtype), ("meta", dtype)):
        weights = WeightsInMemory(tensors, config_of(case), torch.device(device), HERE)
        got = weights.take_dense(NAME, *shape)
        assert got.dtype is wanted and got.device.type == device
        assert weights.num_bytes == got.nbytes and weights.num_widened == 0
        if device == "cpu":
            assert torch.equal(got, case.numbers(tensors, MODULE, *shape).to(dtype))


def test_experts_are_numbers_if_the_groups_of_one_are_in_no_order() -> None:
    case, plain, shape = CASES["gptq-mixed"], CASES["gptq-64-plain"], (16, 128)
    names = [f"{MODULE}.{expert}{WEIGHT}" for expert in range(3)]
    tensors = {}
    for expert, which in enumerate((plain, case, plain)):
        tensors |= which.write(f"{MODULE}.{expert}", *shape)
    weights = WeightsInMemory(tensors, config_of(case), torch.device("cpu"), HERE)
    matrices = weights.take_in_order(names, *shape)
    assert weights.num_widened == 3
    for expert, matrix in enumerate(matrices):
        assert isinstance(matrix, torch.Tensor) and matrix.dtype is torch.float16
        wanted = (plain, case, plain)[expert].numbers(tensors, f"{MODULE}.{expert}", *shape)
        assert torch.equal(matrix, wanted.half())
    kept = weights.take_in_order(names[::2], *shape)
    assert all(isinstance(matrix, Quantized) for matrix in kept) and weights.num_widened == 3


def test_experts_are_numbers_if_the_groups_of_one_have_different_sizes() -> None:
    """The source counts such experts, unless the caller chose a dtype."""
    case, shape = CASES["gptq-64-plain"], (16, 128)
    names = [f"{MODULE}.{expert}{WEIGHT}" for expert in range(2)]
    tensors = case.write(f"{MODULE}.0", *shape) | case.write(f"{MODULE}.1", *shape)
    tensors[f"{MODULE}.1.g_idx"] = torch.tensor([0] * 96 + [1] * 32, dtype=torch.int32)
    for dequantizes, counted in ((False, 2), (True, 0)):
        config = replace(config_of(case), dequantizes=dequantizes)
        weights = WeightsInMemory(tensors, config, torch.device("cpu"), HERE)
        assert all(isinstance(matrix, torch.Tensor) for matrix in weights.take_in_order(names, *shape))
        assert weights.num_widened == counted


@pytest.mark.parametrize("name", CASES)
def test_sizes_are_known_without_contents(name: str) -> None:
    case, shape = CASES[name], (136, 256)
    tensors = case.write(MODULE, *shape)
    headers = WeightsInMemory(tensors, config_of(case), META, HERE)
    real = WeightsInMemory(tensors, config_of(case), torch.device("cpu"), HERE)
    here, there = headers.take_matrix(NAME, *shape), real.take_matrix(NAME, *shape)
    assert here.is_meta and here.shape == there.shape == shape
    assert headers.num_bytes == real.num_bytes
    assert headers.matrix_formats == real.matrix_formats and headers.matrix_dtypes == real.matrix_dtypes
    if isinstance(there, Quantized):
        assert isinstance(here, Quantized) and here.format is there.format
        assert headers.num_bytes == there.data.numel() and headers.matrix_formats == {there.format}
    assert headers.num_parameters == 136 * 256


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_chosen_dtype_dequantises(name: str, dtype: torch.dtype) -> None:
    case, shape = CASES[name], (16, 128)
    tensors = case.write(MODULE, *shape)
    wanted = case.numbers(tensors, MODULE, *shape)
    config = replace(config_of(case), weight_dtype=dtype, dequantizes=True)
    weights = WeightsInMemory(tensors, config, torch.device("cpu"), HERE)
    got = weights.take_matrix(NAME, *shape)
    assert isinstance(got, torch.Tensor) and got.dtype is dtype
    assert torch.equal(got, wanted.to(dtype))
    assert weights.num_bytes == got.nbytes and weights.matrix_dtypes == {dtype}


SIMILAR = ("awq-64", "gptq-8-mixed", "fp8-blocks-bf16")
DAMAGED = [name for name in CASES if name not in SIMILAR and not name.endswith("symmetric")]


@pytest.mark.parametrize("name", DAMAGED)
def test_each_tensor_is_checked_before_any_is_read(name: str) -> None:
    """A tensor that is missing, of another shape or of another dtype is named. Without groups of inputs, these are in
    order."""
    case, shape = CASES[name], (136, 256)
    whole = case.write(MODULE, *shape)
    for part, tensor in whole.items():
        if part.endswith("input_scale"):
            continue
        changes = {
            "missing": None,
            "long": torch.cat((tensor.view(-1), tensor.view(-1)[:1])),
            "deep": tensor.view(1, 1, 1, *tensor.shape),
            "wrong dtype": tensor.view(torch.uint8).to(torch.int16)
            if tensor.dim()
            else tensor.to(torch.int16),
        }
        for kind, change in changes.items():
            if kind == "missing" and part.endswith("g_idx"):
                continue
            tensors = {key: value for key, value in whole.items() if key != part}
            if change is not None:
                tensors[part] = change.view(tensor.shape) if change.shape == tensor.shape else change
            weights = WeightsInMemory(tensors, config_of(case), META, HERE)
            with pytest.raises(ModelError, match=re.escape(repr(part))):
                weights.take_matrix(NAME, *shape)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("awq-128", (16, 192), "must be a multiple of 128"),
        ("awq-all", (16, 48), "must be a multiple of 48|must be a multiple of 32"),
        ("awq-128", (12, 128), "the outputs of 8"),
        ("gptq-128", (16, 40), "the inputs must be a multiple of 32"),
        ("gptq-128", (12, 128), "the outputs of 8"),
        ("gptq-8", (6, 128), "the outputs of 4"),
        ("packed-channel", (16, 40), "rows of 40 integers"),
        ("int8-channel", (16, 40), "rows of 40 integers"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name: str, shape: tuple[int, int], message: str) -> None:
    case = CASES[name]
    tensors = case.write(MODULE, 128, 128)
    weights = WeightsInMemory(tensors, config_of(case), META, HERE)
    with pytest.raises(ModelError, match=f"here: tensor '{MODULE}.*{message}"):
        weights.take_matrix(NAME, *shape)


def test_inputs_that_end_inside_of_a_block_are_read() -> None:
    """FP8's blocks are longer than these rows."""
    case = CASES["fp8-channel"]
    tensors = case.write(MODULE, 9, 200)
    matrix = WeightsInMemory(tensors, config_of(case), torch.device("cpu"), HERE).take_matrix(NAME, 9, 200)
    assert isinstance(matrix, Quantized) and matrix.data.shape == (9, 2 * 132)
    assert torch.equal(matrix.dequantized(), case.numbers(tensors, MODULE, 9, 200))


def test_a_last_group_may_be_shorter() -> None:
    case = CASES["gptq-128"]
    tensors = case.write(MODULE, 16, 192)
    matrix = WeightsInMemory(tensors, config_of(case), torch.device("cpu"), HERE).take_matrix(NAME, 16, 192)
    assert isinstance(matrix, Quantized) and matrix.format is Format.INT4_64
    assert torch.equal(matrix.dequantized(), case.numbers(tensors, MODULE, 16, 192))


@pytest.mark.parametrize("name", ["gptq-64-plain", "packed-plain"])
@pytest.mark.parametrize("group", [-2, 4])
def test_groups_that_there_are_not_are_refused(name: str, group: int) -> None:
    case = CASES[name]
    tensors = case.write(MODULE, 16, 256)
    part = next(part for part in tensors if part.endswith("g_idx"))
    tensors[part][7] = group
    weights = WeightsInMemory(tensors, config_of(case), META, HERE)
    with pytest.raises(ModelError, match=f"{part}.* has a group outside of 0 to 3"):
        weights.take_matrix(NAME, 16, 256)


def test_zeros_that_contradict_the_config_are_refused() -> None:
    case = CASES["gptq-8"]
    tensors = case.write(MODULE, 16, 256)
    tensors[f"{MODULE}.qzeros"][1, 2] += 1
    weights = WeightsInMemory(tensors, config_of(case), torch.device("cpu"), HERE)
    with pytest.raises(ModelError, match=r"qzeros' has other zeros than 128"):
        weights.take_matrix(NAME, 16, 256)


def test_the_shape_that_a_packed_tensor_names_must_be_the_configs() -> None:
    case = CASES["packed-128"]
    tensors = case.write(MODULE, 16, 256)
    tensors[f"{MODULE}.weight_shape"][1] = 250
    weights = WeightsInMemory(tensors, config_of(case), META, HERE)
    with pytest.raises(ModelError, match=r"weight_shape' says \[16, 250\]; config.json wants \[16, 256\]"):
        weights.take_matrix(NAME, 16, 256)


@pytest.mark.parametrize("bias", [0.0, 0.5])
def test_idle_biases_of_gptq_must_be_zeros(bias: float) -> None:
    case = CASES["gptq-128"]
    tensors = case.write(MODULE, 16, 256)
    tensors[f"{MODULE}.bias"] = torch.full((16,), bias)
    weights = WeightsInMemory(tensors, config_of(case), META, HERE)
    weights.take_matrix(NAME, 16, 256)
    if bias:
        with pytest.raises(ModelError, match=r"unexpected tensors .*up_proj.bias"):
            weights.finish()
    else:
        weights.finish()


def test_factors_of_activations_and_caches_are_left_aside() -> None:
    case = CASES["fp8-tensor"]
    tensors = case.write(MODULE, 16, 256)
    tensors["model.layers.0.self_attn.k_proj.k_scale"] = torch.ones(())
    tensors["model.layers.0.self_attn.v_proj.output_scale"] = torch.ones(1)
    weights = WeightsInMemory(tensors, config_of(case), META, HERE)
    weights.take_matrix(NAME, 16, 256)
    weights.finish()
    assert weights.num_parameters == 16 * 256
    assert parameters_of(weights._stored, config_of(case).quantization) == 16 * 256


def test_groups_of_modules_have_their_own_bits() -> None:
    """compressed-tensors chooses by the name first, then by the class."""
    wide, narrow = CASES["packed-8"], CASES["packed-128"]
    settings = {**narrow.settings, "config_groups": dict(narrow.settings["config_groups"])}
    (group,) = wide.settings["config_groups"].values()
    settings["config_groups"]["group_1"] = {**group, "targets": [r"re:.*down_proj$"]}
    config = parse_decoder({**CONFIG, "quantization_config": settings}, "config.json")
    down = MODULE.replace("up", "down")
    tensors = narrow.write(MODULE, 16, 128) | wide.write(down, 16, 128)
    weights = WeightsInMemory(tensors, config, torch.device("cpu"), HERE)
    first, second = weights.take_matrix(NAME, 16, 128), weights.take_matrix(f"{down}.weight", 16, 128)
    assert torch.equal(first.dequantized(), narrow.numbers(tensors, MODULE, 16, 128))
    assert torch.equal(second.dequantized(), wide.numbers(tensors, down, 16, 128))
    assert weights.num_parameters == 2 * 16 * 128


def test_a_class_of_modules_has_the_way_of_its_own_group() -> None:
    wide, narrow = CASES["packed-8"], CASES["packed-128"]
    (group,) = wide.settings["config_groups"].values()
    groups = {"embeddings": {**group, "targets": ["Embedding"]}, **narrow.settings["config_groups"]}
    config = parse_decoder(
        {**CONFIG, "quantization_config": {**narrow.settings, "config_groups": groups}}, "config.json"
    )
    table = "model.embed_tokens"
    tensors = narrow.write(MODULE, 16, 128) | wide.write(table, 16, 128)
    weights = WeightsInMemory(tensors, config, torch.device("cpu"), HERE)
    for name, case in ((MODULE, narrow), (table, wide)):
        matrix = weights.take_matrix(f"{name}.weight", 16, 128)
        assert torch.equal(matrix.dequantized(), case.numbers(tensors, name, 16, 128))


def test_symmetric_zeros_of_awq_must_be_8() -> None:
    case = CASES["awq-symmetric"]
    tensors = case.write(MODULE, 16, 128)
    tensors[f"{MODULE}.qzeros"][0, 1] += 1
    weights = WeightsInMemory(tensors, config_of(case), torch.device("cpu"), HERE)
    with pytest.raises(
        ModelError, match=r"up_proj.qzeros' has other zeros than 8, as 'zero_point' in config"
    ):
        weights.take_matrix(NAME, 16, 128)


ACCEPTED = [
    ("fp8-blocks", {"fmt": "float8_e4m3fn"}),
    ("fp8-modelopt-blocks", {"quant_algo": "fp8_pb_wo"}),
    ("packed-128", {"sparsity_config": {"format": None, "sparsity_structure": "2:4"}}),
    ("packed-128", {"sparsity_config": {"format": "dense"}}),
    ("packed-128", {"transform_config": {"config_groups": {}}}),
    ("auto-round-gptq", {"extra_config": {"a": {"bits": 16}, "b": {"bits": 4, "group_size": 128}}}),
]


@pytest.mark.parametrize(("name", "changes"), ACCEPTED)
def test_other_spellings_of_an_option_mean_the_same(name: str, changes: dict[str, Any]) -> None:
    case = CASES[name]
    assert (
        config_of(replace(case, settings=changed(name, **changes))).quantization
        == config_of(case).quantization
    )


def changed(name: str, **changes: Any) -> dict[str, Any]:
    return {**CASES[name].settings, **changes}


def group_with(name: str, **weights: Any) -> dict[str, Any]:
    """The settings of a case of compressed-tensors, with other options of its group's weights."""
    settings = CASES[name].settings
    (group,) = settings["config_groups"].values()
    return {**settings, "config_groups": {"group_0": {**group, "weights": {**group["weights"], **weights}}}}


REFUSED: list[tuple[object, str]] = [
    ("awq", "does not name a method in 'quant_method'"),
    ({"quant_method": 4}, "does not name a method in 'quant_method'"),
    (
        {"quant_method": "bitsandbytes"},
        "is quantised with bitsandbytes; use the original model, in bfloat16, or",
    ),
    ({"quant_method": "exl2"}, "is quantised with ExLlamaV2; use"),
    ({"quant_method": "quark"}, "is quantised with quark; use"),
    (
        changed("auto-round-gptq", packing_format="auto_round:exllamav2"),
        "'packing_format' is 'auto_round:exl",
    ),
    (changed("auto-round-gptq", packing_format=None), "'packing_format' is None; weft reads"),
    (changed("auto-round-gptq", data_type="mx_fp"), "'data_type' is 'mx_fp'; weft reads 'int'"),
    (changed("auto-round-gptq", sym=None), "'sym' is None; weft reads True or False"),
    (changed("auto-round-gptq", bits=8), "'sym' is False"),
    (changed("auto-round-gptq", extra_config=[8]), r"'extra_config' is \[8\]; it must be an object"),
    (
        changed("auto-round-gptq", extra_config={"model.layers.0.mlp.up_proj": {"bits": 8}}),
        "'extra_config' gives 'model.layers.0.mlp.up_proj' options of its own",
    ),
    (changed("auto-round-awq", bits=8), "'bits' is 8; weft reads 4"),
    (
        {"quant_method": "mxfp4"},
        "is quantised with 'mxfp4', which weft does not read for this architecture; use",
    ),
    (changed("awq-128", bits=8), "'bits' is 8; weft reads 4; use"),
    (changed("awq-128", version="gemv"), "'version' is 'gemv'; weft reads 'gemm' or 'GEMM'; use"),
    (changed("awq-128", zero_point=1), "'zero_point' is 1; weft reads True or False; use"),
    (changed("awq-128", group_size=0), "'group_size' is 0; weft reads -1 and multiples of 32"),
    (changed("awq-128", group_size=-1.0), "'group_size' is -1.0; weft reads"),
    (changed("awq-128", group_size=48), "'group_size' is 48; weft reads"),
    (changed("awq-128", group_size=True), "'group_size' is True; weft reads"),
    (changed("gptq-128", bits=3), "'bits' is 3; weft reads 4 or 8"),
    (changed("gptq-128", bits=True), "'bits' is True; weft reads 4 or 8"),
    (changed("gptq-128", group_size=None), "'group_size' is None; weft reads"),
    (
        changed("gptq-128", checkpoint_format="marlin"),
        "'checkpoint_format' is 'marlin'; weft reads 'gptq' or",
    ),
    (changed("gptq-128", is_marlin_format=True), "'is_marlin_format' is True"),
    (changed("gptq-8", sym=False), "'sym' is False"),
    (changed("gptq-128", dynamic={"+:.*": {"bits": 8}}), "'dynamic' gives modules options of their own"),
    (changed("fp8-blocks", fmt="e5m2"), "'fmt' is 'e5m2'; weft reads 'e4m3' or 'float8_e4m3fn'"),
    (changed("fp8-blocks", weight_block_size=[128, 64]), r"'weight_block_size' is \[128, 64\]; weft reads"),
    (changed("fp8-blocks", weight_block_size=[0, 128]), r"'weight_block_size' is \[0, 128\]; weft reads"),
    (changed("fp8-blocks", weight_block_size=128), "'weight_block_size' is 128; weft reads"),
    (changed("fp8-modelopt", quant_algo="NVFP4"), "'quant_algo' is 'NVFP4'; weft reads 'FP8' or"),
    (changed("packed-128", format="nvfp4-pack-quantized"), "'format' is 'nvfp4-pack-quantized'; weft reads"),
    (changed("packed-128", format="marlin-24"), "'format' is 'marlin-24'; weft reads"),
    (changed("packed-128", sparsity_config={"format": "sparse-24-bitmask"}), "'sparsity_config' is"),
    (changed("packed-128", sparsity_config="dense"), "'sparsity_config' is 'dense'"),
    (changed("packed-128", transform_config={"config_groups": {"R1": {}}}), "'transform_config' is"),
    (changed("packed-128", config_groups=[1]), "'config_groups' is"),
    (changed("packed-128", config_groups={"group_0": {"weights": {}}}), "has in 'group_0' the targets None"),
    (group_with("packed-128", num_bits=3), "group_0: weights: 'num_bits' is 3; weft reads 4 or 8"),
    (group_with("packed-128", type="float"), "group_0: weights: 'num_bits' is 4; weft reads 8"),
    (group_with("packed-128", group_size=None), "group_0: weights: 'group_size' is None"),
    (group_with("packed-128", strategy="tensor_group"), "'strategy' is 'tensor_group'"),
    (group_with("packed-8", symmetric=False), "group_0: weights: 'symmetric' is False"),
    (group_with("int8-channel", symmetric=False), "group_0: weights: 'symmetric' is False"),
    (group_with("fp8-compressed-group", group_size=64), r"'group_size' is \[1, 64\]"),
    (
        changed("packed-128", config_groups={"g": {"targets": ["Conv1d"], "weights": {"num_bits": 4}}}),
        "'config_groups' has the target 'Conv1d'; weft reads the classes 'Linear' and 'Embedding'",
    ),
    (
        changed("packed-128", config_groups={"g": {"targets": ["re:("], "weights": {"num_bits": 4}}}),
        r"'config_groups' has the pattern 're:\('",
    ),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_other_methods_and_options_are_refused(settings: object, message: str) -> None:
    with pytest.raises(ModelError, match=f"config.json: .*{message}"):
        parse_decoder({**CONFIG, "quantization_config": settings}, "config.json")
