"""The EAGLE3 head against a plain one without pages, and heads that do not fit their target."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from support.engine.drafting import PAGE, PAGES, SLOTS, Drafting
from support.engine.random_model import random_model
from support.launch_check import check_launched
from weft.config import Speculation, package_model_path
from weft.errors import ModelError
from weft.models.base import Model
from weft.models.config import ModelConfig
from weft.models.eagle3_head import Eagle3Head
from weft.models.loading import load_model
from weft.models.rope import Llama3Scaling, Rope
from weft.ops.attention import Rows
from weft.ops.formats import Activations
from weft.ops.linear import Linear
from weft.spec.base import DrafterContext
from weft.spec.eagle3 import Eagle3

VOCAB, DRAFT, H, HEADS, KV_HEADS, INNER = 60, 20, 32, 4, 2, 48
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 300.0,
    "rope_scaling": LLAMA3,
    "max_position_embeddings": 16,
    "vocab_size": VOCAB,
    "draft_vocab_size": DRAFT,
    "torch_dtype": "float16",
}


@pytest.fixture
def target() -> Model:
    return random_model(ModelConfig("LlamaForCausalLM", VOCAB, H, 48, 7, 4, 2, 8, 64), seed=5)


def head_tensors() -> dict[str, Tensor]:
    torch.manual_seed(2)
    size = H // HEADS
    kept = torch.randperm(VOCAB)[:DRAFT].sort().values
    shapes = {
        "fc.weight": (H, 3 * H),
        "midlayer.self_attn.q_proj.weight": (HEADS * size, 2 * H),
        "midlayer.self_attn.k_proj.weight": (KV_HEADS * size, 2 * H),
        "midlayer.self_attn.v_proj.weight": (KV_HEADS * size, 2 * H),
        "midlayer.self_attn.o_proj.weight": (H, HEADS * size),
        "midlayer.mlp.gate_proj.weight": (INNER, H),
        "midlayer.mlp.up_proj.weight": (INNER, H),
        "midlayer.mlp.down_proj.weight": (H, INNER),
        "midlayer.input_layernorm.weight": (H,),
        "midlayer.hidden_norm.weight": (H,),
        "midlayer.post_attention_layernorm.weight": (H,),
        "norm.weight": (H,),
        "lm_head.weight": (DRAFT, H),
    }
    tensors = {name: torch.randn(shape) * 0.3 for name, shape in shapes.items()}
    tensors["d2t"] = kept - torch.arange(DRAFT)
    tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, kept, True)
    return tensors


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save_file(head_tensors(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def edit(directory: Path, config: dict[str, Any], change: Callable[[dict[str, Tensor]], object]) -> None:
    (directory / "config.json").write_text(json.dumps({**CONFIG, **config}))
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def plain_features(tensors: dict[str, Tensor], aux: Tensor, config: dict[str, Any]) -> Tensor:
    """The features [..., H] of the target's hidden states [..., F]."""
    if config.get("norm_before_fc"):
        aux = rms(aux, tensors["input_norm.weight"])
    if config.get("fc_norm"):
        parts = enumerate(aux.chunk(3, -1))
        aux = torch.cat([rms(part, tensors[f"fc_norm.{i}.weight"]) for i, part in parts], -1)
    return aux @ tensors["fc.weight"].T + tensors.get("fc.bias", torch.zeros(()))


def plain_head(
    tensors: dict[str, Tensor], embedded: Tensor, features: Tensor, config: dict[str, Any] = CONFIG
) -> tuple[Tensor, Tensor]:
    """Next features and logits of one row's entries [L, H] from position 0, with nothing kept."""
    t = {k.removeprefix("midlayer."): v for k, v in tensors.items()}
    size, length = H // HEADS, features.shape[0]
    normed = rms(features, t["hidden_norm.weight"])
    both = torch.cat((rms(embedded, t["input_layernorm.weight"]), normed), -1)
    q, k, v = (
        (both @ t[f"self_attn.{n}_proj.weight"].T).view(length, -1, size).transpose(0, 1)
        for n in ("q", "k", "v")
    )
    if "self_attn.q_norm.weight" in t:
        q, k = rms(q, t["self_attn.q_norm.weight"]), rms(k, t["self_attn.k_norm.weight"])
    rope = Rope(300.0, Llama3Scaling(factor=8.0, low=1.0, high=4.0, original=16))
    angles = torch.outer(torch.arange(length).float(), rope.frequencies(size)).repeat(1, 2)

    def turn(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * angles.cos() + torch.cat((-b, a), -1) * angles.sin()

    k, v = turn(k).repeat_interleave(HEADS // KV_HEADS, 0), v.repeat_interleave(HEADS // KV_HEADS, 0)
    is_hidden = torch.ones(length, length).triu(1).bool()
    if config.get("layer_types"):
        is_hidden |= torch.ones(length, length).tril(-config["sliding_window"]).bool()
    scores = (turn(q) @ k.transpose(1, 2) / size**0.5).masked_fill(is_hidden, -torch.inf)
    attended = (scores.softmax(-1) @ v).transpose(0, 1).reshape(length, -1)
    x = normed if config.get("norm_before_residual") else features
    x = x + attended @ t["self_attn.o_proj.weight"].T
    y = rms(x, t["post_attention_layernorm.weight"])
    x = (
        x
        + (F.silu(y @ t["mlp.gate_proj.weight"].T) * (y @ t["mlp.up_proj.weight"].T))
        @ t["mlp.down_proj.weight"].T
    )
    y = rms(x, tensors["norm.weight"])
    return y if config.get("norm_output") else x, y @ tensors["lm_head.weight"].T


def test_prefill_then_drafting_matches_a_plain_head(directory: Path, target: Model) -> None:
    head, tensors = Eagle3Head.load(directory, target), head_tensors()
    torch.manual_seed(9)
    tokens, aux = torch.randint(0, VOCAB, (2, 24)), torch.randn(2, 20, 3 * H)
    kv = head.allocate_kv(13, 4)
    table = torch.randperm(12).view(2, 6).int() + 1

    def read(tokens: Tensor, features: Tensor, start: int) -> Tensor:
        rows = Rows(table, torch.full((2,), start), tokens.shape[1])
        return head.forward(tokens, features, kv, rows)

    with torch.inference_mode():
        wanted_features = aux @ tensors["fc.weight"].T
        features = head.combine(aux)
        torch.testing.assert_close(features, wanted_features, atol=1e-5, rtol=1e-5)
        before = features.clone()
        read(tokens[:, :17], features[:, :17], 0)
        x = read(tokens[:, 17:20], features[:, 17:], 17)
        assert torch.equal(features, before)
        for step in range(20, 24):
            for row in range(2):
                want_x, want_logits = plain_head(
                    tensors, target.embedding[tokens[row, :step]], wanted_features[row]
                )
                torch.testing.assert_close(x[row, -1], want_x[-1], atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(head.logits(x[:, -1])[row], want_logits[-1], atol=1e-4, rtol=1e-4)
            wanted_features = torch.cat((wanted_features, x[:, -1:]), 1)
            x = read(tokens[:, step : step + 1], x[:, -1:], step)


@pytest.mark.parametrize("rounding", [Activations.FLOAT32, Activations.BFLOAT16])
def test_its_products_round_rows_as_the_targets(
    rounding: Activations, directory: Path, target: Model
) -> None:
    target.config = replace(target.config, weight_dtype=torch.bfloat16, rounding=rounding)
    head, aux = Eagle3Head.load(directory, target), torch.randn(2, 3, 3 * H)
    product = Linear(head_tensors()["fc.weight"].bfloat16(), activations=rounding)
    assert torch.equal(head.combine(aux).flatten(0, 1), product(aux.flatten(0, 1)))


def test_what_a_head_says_of_itself(directory: Path, target: Model) -> None:
    head = Eagle3Head.load(directory, target)
    tensors = head_tensors()
    assert head.d2t is not None
    assert torch.equal(head.d2t, tensors["d2t"])
    assert torch.equal(torch.arange(DRAFT) + head.d2t, tensors["t2d"].nonzero().flatten())
    assert head.aux_layers == (2, 3, 4)
    assert (head.draft_vocab_size, head.hidden_size, head.dtype) == (DRAFT, H, torch.float32)
    assert head.config.max_position_embeddings == 64, "as long as its target"


AUX = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("config", "inputs"),
    [
        ({}, (2, 3, 4)),
        ({"eagle_config": {AUX: []}}, (2, 3, 4)),  # NVIDIA's gpt-oss-120b-Eagle3
        ({"eagle_config": {AUX: [0, 5, 7]}}, (0, 5, 7)),
        ({"eagle_config": {AUX: [2, 4, 6]}}, (2, 4, 6)),
        ({"eagle_config": {AUX: [1, 4, 6]}}, (2, 5, 7)),  # outputs: SpecForge, ModelOpt
        ({AUX: [1, 4, 7]}, (1, 4, 7)),  # inputs: speculators
        ({AUX: None, "eagle_config": None}, (2, 3, 4)),
    ],
)
def test_aux_layers_come_from_its_config(
    config: dict[str, Any], inputs: tuple[int, ...], directory: Path, target: Model
) -> None:
    edit(directory, config, lambda t: None)
    assert Eagle3Head.load(directory, target).aux_layers == inputs


def weights_of(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    """Random tensors with these shapes, by name; __ is a dot."""
    torch.manual_seed(3)
    return {f"{name.replace('__', '.')}": 1 + torch.randn(shape) * 0.3 for name, shape in shapes.items()}


def renamed(tensors: dict[str, Tensor], start: str, layer: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint under the names of another format."""
    names = {name: name.replace("midlayer.", layer) for name in tensors}
    return {name if name == "lm_head.weight" else start + name: tensors[old] for old, name in names.items()}


SIZE = H // HEADS
KINDS: dict[str, tuple[dict[str, Any], dict[str, Tensor]]] = {
    "plain": ({}, {}),
    "norm before residual": ({"norm_before_residual": True}, {}),
    "norm before fc": ({"norm_before_fc": True}, weights_of(input_norm__weight=(3 * H,))),
    "fc norms": (
        {"fc_norm": True},
        weights_of(fc_norm__0__weight=(H,), fc_norm__1__weight=(H,), fc_norm__2__weight=(H,)),
    ),
    "normed output": ({"norm_output": True}, {}),
    "bias of fc": ({"bias": True}, weights_of(fc__bias=(H,))),
    "Qwen3": (
        {"model_type": "qwen3"},
        weights_of(midlayer__self_attn__q_norm__weight=(SIZE,), midlayer__self_attn__k_norm__weight=(SIZE,)),
    ),
    "window": ({"layer_types": ["sliding_attention"], "sliding_window": 5}, {}),
    "Llama 4": ({"model_type": "llama4_text", "intermediate_size_mlp": INNER, "intermediate_size": 7}, {}),
    "all": (
        {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True},
        weights_of(input_norm__weight=(3 * H,)),
    ),
}


@pytest.mark.parametrize("form", ["plain", "eagle_config", "speculators"])
@pytest.mark.parametrize("kind", KINDS)
def test_heads_of_all_kinds_draft_as_a_plain_head(
    kind: str, form: str, directory: Path, target: Model
) -> None:
    own, more = KINDS[kind]
    tensors = head_tensors() | more
    config: dict[str, Any] = {**CONFIG, **own}
    flags = {key: value for key, value in own.items() if key.startswith(("norm", "fc"))}
    if form == "eagle_config":
        config = {**{k: v for k, v in config.items() if k not in flags}, "eagle_config": flags}
    elif form == "speculators":
        keys = {"architectures", "draft_vocab_size", *flags}
        layer = {key: value for key, value in config.items() if key not in keys}
        config = {key: value for key, value in config.items() if key in keys} | {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "transformer_layer_config": layer,
            "target_hidden_size": None,
        }
    names = {
        "plain": ("", "midlayer."),
        "eagle_config": ("model.", "midlayer."),
        "speculators": ("", "layers.0."),
    }
    save_file(renamed(tensors, *names[form]), directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    check_drafts(directory, target, tensors, {**CONFIG, **own}, seed=1)


def check_drafts(
    directory: Path, target: Model, tensors: dict[str, Tensor], config: dict[str, Any], seed: int
) -> None:
    """Compare drafts, whatever was refused before, with those of a plain head."""
    drafter = Eagle3.load(context(target, directory, 4))
    embedding = tensors.get("embed_tokens.weight", target.embedding)

    def oracle(tokens: Tensor, aux: Tensor, drafts: list[int]) -> Tensor:
        behind, features = tokens[1:], plain_features(tensors, aux, config)
        for draft in [*drafts, None]:
            x, logits = plain_head(tensors, embedding[behind], features, config)
            if draft is not None:
                behind = torch.cat((behind, torch.tensor([draft])))
                features = torch.cat((features, x[-1:]))
        return logits[-1]

    width = tensors["fc.weight"].shape[1]
    drafting = Drafting(drafter, drafter.kv, oracle, VOCAB, width, seed)
    drafting.run(4, [0, 2, 4])
    assert drafting.compared > 0


def test_a_head_may_be_narrower_than_its_target(directory: Path) -> None:
    wide = random_model(ModelConfig("LlamaForCausalLM", VOCAB, 48, 64, 7, 4, 2, 12, 64), seed=6)
    tensors = head_tensors() | {
        "fc.weight": torch.randn(H, 3 * 48) * 0.3,
        "embed_tokens.weight": torch.randn(VOCAB, H),
    }
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({**CONFIG, "target_hidden_size": 48}))
    check_drafts(directory, wide, tensors, CONFIG, seed=0)
    edit(directory, {"target_hidden_size": 48}, lambda t: t.pop("embed_tokens.weight"))
    with pytest.raises(
        ModelError, match=r"no tensor 'embed_tokens.weight'; expected one of shape \[60, 32\]"
    ):
        Eagle3Head.load(directory, wide)


@pytest.mark.parametrize("normed", [False, True])
def test_a_head_without_an_output_projection_has_its_targets(
    normed: bool, directory: Path, target: Model
) -> None:
    config = {"draft_vocab_size": None, "norm_output": normed}
    edit(directory, config, lambda t: [t.pop(name) for name in ("d2t", "t2d", "lm_head.weight")])
    tensors = head_tensors() | {"lm_head.weight": target.head(torch.eye(H)).T}
    check_drafts(directory, target, tensors, {**CONFIG, **config}, seed=0)


def test_an_output_projection_may_be_the_heads_own_embedding(directory: Path, target: Model) -> None:
    config, own = {"draft_vocab_size": VOCAB, "tie_word_embeddings": True}, torch.randn(VOCAB, H)

    def tie(tensors: dict[str, Tensor]) -> None:
        for name in ("d2t", "t2d", "lm_head.weight"):
            del tensors[name]
        tensors["embed_tokens.weight"] = own

    edit(directory, config, tie)
    tensors = head_tensors() | {"embed_tokens.weight": own, "lm_head.weight": own}
    check_drafts(directory, target, tensors, CONFIG, seed=0)


def test_own_embeddings_are_used(directory: Path, target: Model) -> None:
    tokens, features = torch.tensor([[3]]), torch.randn(1, 1, H)

    def once() -> Tensor:
        head = Eagle3Head.load(directory, target)
        rows = Rows(torch.tensor([[1]], dtype=torch.int32), torch.tensor([0]), 1)
        with torch.inference_mode():
            return head.forward(tokens, features, head.allocate_kv(2, 4), rows)

    shared = once()
    own = target.embedding.clone()
    edit(directory, {}, lambda t: t.update({"embed_tokens.weight": own}))
    assert torch.equal(once(), shared)
    own[3] += 1
    edit(directory, {}, lambda t: t.update({"embed_tokens.weight": own}))
    assert not torch.allclose(once(), shared)


def test_a_head_with_the_whole_vocabulary_needs_no_d2t(directory: Path, target: Model) -> None:
    def widen(tensors: dict[str, Tensor]) -> None:
        del tensors["d2t"], tensors["t2d"]
        tensors["lm_head.weight"] = torch.randn(VOCAB, H)

    edit(directory, {"draft_vocab_size": None}, widen)
    head = Eagle3Head.load(directory, target)
    assert head.d2t is None
    assert head.draft_vocab_size == VOCAB


MISFITS: dict[str, tuple[dict[str, Any], Callable[[dict[str, Tensor]], object], str]] = {
    "hidden": ({"hidden_size": 64}, lambda t: None, r"'hidden_size' is 64; .* this target .* has 32"),
    "vocab": ({"vocab_size": 61}, lambda t: None, r"'vocab_size' is 61; .* this target .* has 60"),
    "no-d2t": ({}, lambda t: t.pop("d2t"), r"no tensor 'd2t'; expected one of shape \[20\]"),
    "d2t-range": (
        {},
        lambda t: t["d2t"].fill_(41),
        r"'d2t' sends draft id 19 to 60; the target has ids 0 to 59",
    ),
    "d2t-below": (
        {},
        lambda t: t["d2t"].__setitem__(0, -1),
        r"'d2t' sends draft id 0 to -1; the target has ids 0 to 59",
    ),
    "d2t-dtype": (
        {},
        lambda t: t.update(d2t=t["d2t"].float()),
        r"'d2t' is torch.float32; it must hold integers",
    ),
    "d2t-length": (
        {"draft_vocab_size": 21},
        lambda t: None,
        r"'d2t' has shape \[20\]; config.json wants \[21\]",
    ),
    "aux-range": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 8]}},
        lambda t: None,
        r"is \[2, 3, 8\]; it must list layers of the target, each 0 to 7",
    ),
    "aux-outputs": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 7]}},
        lambda t: None,
        r"is \[1, 2, 7\]; it must list layers of the target, each 0 to 6",
    ),
    "aux-kind": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [True, 2, 4]}},
        lambda t: None,
        r"is \[True, 2, 4\]; it must list numbers of the target's layers",
    ),
    "eagle-config": (
        {"eagle_config": [1, 2, 3]},
        lambda t: None,
        r"'eagle_config' is \[1, 2, 3\]; it must be an object",
    ),
    "layers": ({"num_hidden_layers": 2}, lambda t: None, "'num_hidden_layers' is 2; weft runs 1"),
    "missing": (
        {},
        lambda t: t.pop("midlayer.hidden_norm.weight"),
        r"no tensor 'midlayer.hidden_norm.weight'; expected one of shape \[32\]",
    ),
    "misshapen": (
        {"intermediate_size": 50},
        lambda t: None,
        r"'midlayer.mlp.gate_proj.weight' has shape \[48, 32\]; config.json wants \[50, 32\]",
    ),
    "draft-vocab": (
        {"draft_vocab_size": 0},
        lambda t: None,
        "'draft_vocab_size' is 0; it must be a positive integer",
    ),
    "aux-count": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4]}},
        lambda t: None,
        r"'fc.weight' has shape \[32, 96\]; config.json wants \[32, 64\]",
    ),
    "both-norms": (
        {"norm_before_fc": True, "eagle_config": {"fc_norm": True}},
        lambda t: None,
        "'fc_norm' is True, and so is 'norm_before_fc'",
    ),
    "latent": ({"kv_lora_rank": 16}, lambda t: None, "'kv_lora_rank' is 16; weft runs models without it"),
    "last-state": (
        {"eagle_config": {"use_aux_hidden_state": False}},
        lambda t: None,
        "eagle_config: 'use_aux_hidden_state' is False; weft runs True",
    ),
    "parallel": ({"speculators_model_type": "peagle"}, lambda t: None, "is 'peagle'; weft runs 'eagle3'"),
    "target-width": (
        {"target_hidden_size": 48},
        lambda t: None,
        r"'target_hidden_size' is 48; .* this target .* has 32",
    ),
    "extra": ({}, lambda t: t.update({"fc.bias": torch.zeros(H)}), "unexpected tensors 'fc.bias'"),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_a_head_that_does_not_fit_is_refused(kind: str, directory: Path, target: Model) -> None:
    config, change, message = MISFITS[kind]
    edit(directory, config, change)
    with pytest.raises(ModelError, match=message):
        Eagle3Head.load(directory, target)


def test_a_bin_file_is_refused(directory: Path, target: Model) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(ModelError, match="convert to safetensors"):
        Eagle3Head.load(directory, target)


def context(target: Model, path: Path, num_draft_tokens: int) -> DrafterContext:
    speculation = Speculation.eagle3(path, num_draft_tokens=num_draft_tokens)
    return DrafterContext(speculation, path, target, SLOTS, SLOTS * PAGES + 1, PAGE, PAGES * PAGE)


@pytest.mark.parametrize("seed", range(3))
def test_drafts_are_those_of_a_plain_head_whatever_was_refused(
    seed: int, directory: Path, target: Model
) -> None:
    check_drafts(directory, target, head_tensors(), CONFIG, seed)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path, target: Model) -> None:
    with pytest.raises(ModelError, match=r"no EAGLE3 head there; give its directory to Speculation.eagle3"):
        Eagle3.load(context(target, tmp_path / "elsewhere", 3))


class DraftStep:
    """A launched step of the head."""

    def __init__(self, head: Eagle3Head) -> None:
        self.head = head
        self.kv = head.allocate_kv(5, 4)
        self.table = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)
        self.base, self.tokens = torch.tensor([3, 5]), torch.tensor([[7], [9]])
        self.features, self.logits = torch.randn(2, 1, H), torch.zeros(2, DRAFT)
        self.aux = torch.randn(2, 1, 3 * H)

    def __call__(self) -> None:
        features = self.features + self.head.combine(self.aux)
        x = self.head.forward(self.tokens, features, self.kv, Rows(self.table, self.base, 1))
        self.head.logits(x[:, 0], self.logits)
        self.features.copy_(x)


def test_drafting_keeps_the_rule_of_launched_functions(directory: Path, target: Model) -> None:
    with torch.inference_mode():
        check_launched(DraftStep(Eagle3Head.load(directory, target)))


def test_the_embedded_head_fits_the_embedded_model() -> None:
    path = package_model_path()
    model = load_model(path)
    head = Eagle3Head.load(path / "eagle3", model)
    assert head.d2t is not None
    assert head.draft_vocab_size < model.config.vocab_size
    assert len(head.aux_layers) == 3
