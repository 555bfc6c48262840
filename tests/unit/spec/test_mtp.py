"""MTP modules against plain ones without pages, and those that do not fit their target."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from support.engine.checkpoints import mtp_tensors, save_checkpoint, save_mtp
from support.engine.drafting import PAGE, PAGES, SLOTS, Drafting, Oracle
from support.engine.random_model import random_model
from support.launch_check import check_launched
from weft.config import Speculation, package_model_path
from weft.errors import ModelError
from weft.models.base import Model, PagedKV
from weft.models.config import ModelConfig
from weft.models.loading import load_model
from weft.models.mtp_module import MtpModules
from weft.models.rope import Rope
from weft.ops.attention import Rows
from weft.spec.base import DrafterContext
from weft.spec.mtp import Mtp, MtpChain

VOCAB, H, HEADS, LAYERS = 60, 32, 4, 3


@pytest.fixture
def target() -> Model:
    return random_model(ModelConfig("LlamaForCausalLM", VOCAB, H, 48, LAYERS, HEADS, 2, 8, 64), seed=5)


def context(target: Model, path: Path, num_draft_tokens: Any, given: bool = True) -> DrafterContext:
    speculation = Speculation.mtp(path if given else None, num_draft_tokens=num_draft_tokens)
    return DrafterContext(speculation, path, target, SLOTS, SLOTS * PAGES + 1, PAGE, PAGES * PAGE)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def plain_module(t: dict[str, Tensor], embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [L, H] of one row's entries from position 0, with nothing kept: before the output norm and after."""
    size, length = H // HEADS, hidden.shape[0]
    both = torch.cat((rms(embedded, t["enorm.weight"]), rms(hidden, t["hnorm.weight"])), -1)
    x = both @ t["eh_proj.weight"].T
    y = rms(x, t["input_layernorm.weight"])
    q, k, v = (
        (y @ t[f"self_attn.{n}_proj.weight"].T).view(length, -1, size).transpose(0, 1)
        for n in ("q", "k", "v")
    )
    angles = torch.outer(torch.arange(length).float(), Rope(10000.0).frequencies(size)).repeat(1, 2)

    def turn(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * angles.cos() + torch.cat((-b, a), -1) * angles.sin()

    k, v = turn(k).repeat_interleave(2, 0), v.repeat_interleave(2, 0)
    scores = turn(q) @ k.transpose(1, 2) / size**0.5
    scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
    x = x + (scores.softmax(-1) @ v).transpose(0, 1).reshape(length, -1) @ t["self_attn.o_proj.weight"].T
    x = x + plain_mlp(t, rms(x, t["post_attention_layernorm.weight"]))
    return x, rms(x, t["shared_head.norm.weight"])


def plain_mlp(t: dict[str, Tensor], y: Tensor) -> Tensor:
    """The MLP of a module's layer, or its mixture with Mixtral's router."""

    def mlp(gate: str, up: str, down: str) -> Tensor:
        gated = F.silu(y @ t[f"{gate}.weight"].T) * (y @ t[f"{up}.weight"].T)
        return gated @ t[f"{down}.weight"].T

    router = t.get("block_sparse_moe.gate.weight")
    if router is None:
        return mlp("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    best = (y @ router.T).topk(2, -1)
    shares = torch.zeros(len(y), len(router)).scatter(1, best.indices, best.values.softmax(-1))
    prefixes = [f"block_sparse_moe.experts.{expert}." for expert in range(len(router))]
    parts = torch.stack([mlp(f"{p}w1", f"{p}w3", f"{p}w2") for p in prefixes], 1)
    return (parts * shares[:, :, None]).sum(1)


def plain_modules(path: Path, count: int) -> list[dict[str, Tensor]]:
    tensors = load_file(path / "model.safetensors")
    prefixes = [f"layers.{i}." for i in range(count)]
    return [{k.removeprefix(p): v for k, v in tensors.items() if k.startswith(p)} for p in prefixes]


def recurrent_oracle(module: dict[str, Tensor], target: Model, reads_normed: bool = True) -> Oracle:
    def logits(tokens: Tensor, hidden: Tensor, drafts: list[int]) -> Tensor:
        behind = tokens[1:]
        for draft in [*drafts, None]:
            outputs = plain_module(module, target.embedding[behind], hidden)
            if draft is not None:
                behind = torch.cat((behind, torch.tensor([draft])))
                hidden = torch.cat((hidden, outputs[reads_normed][-1:]))
        return target.logits(outputs[1][-1], is_normed=True)

    return logits


def chain_oracle(modules: list[dict[str, Tensor]], target: Model, reads_normed: bool = True) -> Oracle:
    def logits(tokens: Tensor, hidden: Tensor, drafts: list[int]) -> Tensor:
        text = torch.cat((tokens, torch.tensor(drafts, dtype=torch.int64)))
        for k in range(1, len(drafts) + 2):
            outputs = plain_module(modules[k - 1], target.embedding[text[k : k + len(hidden)]], hidden)
            hidden = outputs[reads_normed]
        return target.logits(outputs[1][-1], is_normed=True)

    return logits


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_drafts", [1, 3, 8])
def test_one_module_drafts_from_its_own_output(
    num_drafts: int, seed: int, tmp_path: Path, target: Model
) -> None:
    save_mtp(tmp_path / "mtp", VOCAB, H)
    drafter = Mtp.load(context(target, tmp_path, num_drafts, given=False))
    assert isinstance(drafter, Mtp)
    assert drafter.d2t is None
    assert drafter.aux_layers == (LAYERS + 1,)
    oracle = recurrent_oracle(plain_modules(tmp_path / "mtp", 1)[0], target)
    drafting = Drafting(drafter, drafter.kv, oracle, VOCAB, H, seed)
    drafting.run(num_drafts, [0, num_drafts])
    assert drafting.compared > 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("modules", "num_drafts"), [(2, 1), (2, 2), (5, 3), (8, 8)])
def test_of_several_modules_each_makes_a_draft(
    modules: int, num_drafts: int, seed: int, tmp_path: Path, target: Model
) -> None:
    """All drafts equal those of a pass over the whole text, whatever was drafted and refused before."""
    save_mtp(tmp_path / "mtp", VOCAB, H, modules)
    drafter = Mtp.load(context(target, tmp_path, num_drafts, given=False))
    assert isinstance(drafter, MtpChain)
    oracle = chain_oracle(plain_modules(tmp_path / "mtp", modules), target)
    drafting = Drafting(drafter, drafter.kv, oracle, VOCAB, H, seed)
    drafting.run(num_drafts, list(range(num_drafts + 1)))
    assert drafting.compared > 0


def test_the_comparison_finds_kv_that_was_left_out(tmp_path: Path, target: Model) -> None:
    """Iterations that make fewer drafts than they verified: the last module misses entries."""
    save_mtp(tmp_path / "mtp", VOCAB, H, 3)
    drafter = Mtp.load(context(target, tmp_path, 3, given=False))
    assert isinstance(drafter, MtpChain)
    oracle = chain_oracle(plain_modules(tmp_path / "mtp", 3), target)
    with pytest.raises(AssertionError, match="not close"):
        Drafting(drafter, drafter.kv, oracle, VOCAB, H, 0).run(3, [0, 1, 3], wider=2)


def test_what_modules_read_is_the_last_hidden_state_after_its_norm(target: Model) -> None:
    kv = PagedKV.for_model(target, 4, PAGE)
    rows = Rows(torch.tensor([[1, 2]], dtype=torch.int32), torch.tensor([0]), 6)
    with torch.inference_mode():
        hidden = target.forward(torch.arange(6)[None], kv, rows, (LAYERS + 1,))
        torch.testing.assert_close(
            hidden.aux[0], F.rms_norm(hidden.last[0], (H,), eps=1e-6)
        )  # weights of ones
        assert torch.equal(target.logits(hidden.aux, is_normed=True), target.logits(hidden.last))
        both = target.forward(torch.arange(6)[None], kv, rows, (LAYERS + 1, 0)).aux
    assert torch.equal(both[..., :H], hidden.aux)
    assert torch.equal(both[..., H:], target.embedding[:6][None])


@pytest.mark.parametrize("modules", [1, 3])
def test_drafting_keeps_the_rule_of_launched_functions(modules: int, tmp_path: Path, target: Model) -> None:
    save_mtp(tmp_path / "mtp", VOCAB, H, modules)
    drafter = Mtp.load(context(target, tmp_path / "mtp", 3))
    drafting = Drafting(drafter, drafter.kv, lambda *_: torch.empty(0), VOCAB, H, 0)
    drafter.kv.groups[0].zero_()
    with torch.inference_mode():
        for slot, length in enumerate([1, 2, 2, 2]):
            drafting.begin(slot, length)
        for parts in (drafting.read([1, 2, 3]), None):
            verified, buffers = drafting.verify(
                [2, 0, 3, 1], 4, parts
            )  # no padding: its results are undefined
            check_launched(drafter.draft_first, verified, buffers)
            check_launched(drafter.draft_next, verified, buffers, 2)


def save_inside(path: Path, kind: str, modules: int) -> list[dict[str, Tensor]]:
    """A target's checkpoint with random modules in it; the modules under their plain names."""
    model_type = {"deepseek": "llama", "mimo": "qwen2", "qwen": "llama"}[kind]
    save_checkpoint(
        path, model_type, vocab_size=VOCAB, hidden_size=H, num_hidden_layers=LAYERS, rms_norm_eps=1e-5
    )
    tensors = load_file(path / "model.safetensors")
    plain = [mtp_tensors("", H, seed) for seed in range(modules)]
    for i, module in enumerate(plain):
        if kind == "deepseek":
            tensors.update({f"model.layers.{LAYERS + i}.{name}": t for name, t in module.items()})
            for copy in ("embed_tokens.weight", "shared_head.head.weight"):
                tensors[f"model.layers.{LAYERS + i}.{copy}"] = torch.zeros(VOCAB, H)
            continue
        if kind == "qwen":
            tensors |= qwen_names(module, plain[0], i)
            continue
        prefix = f"model.mtp_layers.{i}."
        names = {
            "enorm": "token_layernorm",
            "hnorm": "hidden_layernorm",
            "shared_head.norm": "final_layernorm",
        }
        for name, tensor in module.items():
            stem = name.removesuffix(".weight")
            tensors[f"{prefix}{names.get(stem, stem)}.weight"] = tensor
        embedding, hidden = tensors.pop(f"{prefix}eh_proj.weight").chunk(2, 1)
        tensors[f"{prefix}input_proj.weight"] = torch.cat((hidden, embedding), 1)
        for name, width in (("q", H), ("k", H // 2), ("v", H // 2)):
            tensors[f"{prefix}self_attn.{name}_proj.bias"] = torch.zeros(width)
    save_file({name: t.contiguous() for name, t in tensors.items()}, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    config["mtp_num_hidden_layers" if kind == "qwen" else "num_nextn_predict_layers"] = modules
    if kind == "mimo":
        config.update(architectures=["MiMoForCausalLM"], model_type="mimo")
    (path / "config.json").write_text(json.dumps(config))
    return plain


def qwen_names(module: dict[str, Tensor], first: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    """A module's tensors by Qwen's names. All but those of its layer are shared, and become the first module's."""
    names = {
        "enorm": "pre_fc_norm_embedding",
        "hnorm": "pre_fc_norm_hidden",
        "eh_proj": "fc",
        "shared_head.norm": "norm",
    }
    module |= {f"{name}.weight": first[f"{name}.weight"] for name in names}
    return {
        f"mtp.{names[stem]}.weight"
        if (stem := name.removesuffix(".weight")) in names
        else f"mtp.layers.{number}.{name}": t
        for name, t in module.items()
    }


@pytest.mark.parametrize("modules", [1, 2])
@pytest.mark.parametrize("kind", ["deepseek", "mimo", "qwen"])
def test_modules_inside_the_targets_checkpoint(kind: str, modules: int, tmp_path: Path) -> None:
    plain = save_inside(tmp_path, kind, modules)
    target = load_model(tmp_path)
    assert target.config.num_mtp_modules == modules
    drafter = Mtp.load(context(target, tmp_path, 2, given=False))
    reads_normed = kind != "mimo"
    assert drafter.aux_layers == (LAYERS + reads_normed,)
    if modules == 1:
        oracle = recurrent_oracle(plain[0], target, reads_normed)
    else:
        oracle = chain_oracle(plain, target, reads_normed)
    drafting = Drafting(drafter, drafter.kv, oracle, VOCAB, H, 0)
    drafting.run(2, [0, 2])
    assert drafting.compared > 0


def test_a_modules_layer_may_be_a_mixture(tmp_path: Path) -> None:
    """The layer of a Mixtral."""
    count = 4
    sizes: dict[str, Any] = {"num_local_experts": count, "num_experts_per_tok": 2, "sliding_window": None}
    sizes["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    save_checkpoint(
        tmp_path,
        "mixtral",
        vocab_size=VOCAB,
        hidden_size=H,
        num_hidden_layers=LAYERS,
        rms_norm_eps=1e-5,
        **sizes,
    )
    tensors = load_file(tmp_path / "model.safetensors")
    module = mtp_tensors("", H, 0)
    generator = torch.Generator().manual_seed(1)
    mlp = {name: module.pop(f"mlp.{name}_proj.weight") for name in ("gate", "up", "down")}
    names = {"gate": "w1", "up": "w3", "down": "w2"}
    experts = {
        f"block_sparse_moe.experts.{e}.{names[name]}.weight": t
        + torch.randn(t.shape, generator=generator) * 0.2
        for e in range(count)
        for name, t in mlp.items()
    }
    module |= experts | {"block_sparse_moe.gate.weight": torch.randn(count, H, generator=generator)}
    tensors |= {f"model.layers.{LAYERS}.{name}": t for name, t in module.items()}
    save_file({name: t.contiguous() for name, t in tensors.items()}, tmp_path / "model.safetensors")
    edit(tmp_path, {"num_nextn_predict_layers": 1}, lambda t: None)
    target = load_model(tmp_path)
    drafter = Mtp.load(context(target, tmp_path, 3, given=False))
    drafting = Drafting(drafter, drafter.kv, recurrent_oracle(module, target), VOCAB, H, 0)
    drafting.run(3, [0, 3])
    assert drafting.compared > 0


def test_a_target_that_transformers_runs_has_no_modules(tmp_path: Path, target: Model) -> None:
    save_inside(tmp_path, "deepseek", 1)
    edit(tmp_path, {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox"}, lambda t: None)
    with pytest.raises(ModelError, match="GPTNeoXForCausalLM is run by transformers' code, which has no MTP"):
        MtpModules.load(tmp_path, target)


def test_a_bias_of_the_layer_counts(tmp_path: Path) -> None:
    save_inside(tmp_path, "mimo", 1)
    target = load_model(tmp_path)
    rows = Rows(torch.tensor([[1]], dtype=torch.int32), torch.tensor([0]), 3)

    def once() -> Tensor:
        modules = MtpModules.load(tmp_path, target)
        with torch.inference_mode():
            hidden = torch.linspace(-1, 1, 3 * H).view(1, 3, H)
            return modules.forward(torch.arange(3)[None], hidden, modules.allocate_kv(2, 4), rows)

    without = once()
    name = "model.mtp_layers.0.self_attn.v_proj.bias"
    edit(tmp_path, {}, lambda t: t.update({name: torch.ones(H // 2)}))
    assert not torch.allclose(once(), without)


def edit(directory: Path, config: dict[str, Any], change: Callable[[dict[str, Tensor]], object]) -> None:
    where = directory / "config.json"
    data = {**json.loads(where.read_text()), **config}
    where.write_text(json.dumps({k: v for k, v in data.items() if v is not ...}))
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


MISFITS: dict[str, tuple[dict[str, Any], Callable[[dict[str, Tensor]], object], str]] = {
    "hidden": ({"hidden_size": 64}, lambda t: None, r"'hidden_size' is 64; .* this target .* has 32"),
    "vocab": ({"vocab_size": 61}, lambda t: None, r"'vocab_size' is 61; .* this target .* has 60"),
    "count": (
        {"num_nextn_predict_layers": ...},
        lambda t: None,
        "'num_nextn_predict_layers' is missing; it must be a positive integer",
    ),
    "too-few": (
        {"num_nextn_predict_layers": 3},
        lambda t: None,
        r"no tensor 'layers.2.enorm.weight'; expected one of shape \[32\]",
    ),
    "too-many": (
        {"num_nextn_predict_layers": 1},
        lambda t: None,
        "unexpected tensors 'layers.1.eh_proj.weight'",
    ),
    "missing": ({}, lambda t: t.pop("layers.0.hnorm.weight"), "no tensor 'layers.0.hnorm.weight'"),
    "projection": (
        {},
        lambda t: t.update({"layers.0.eh_proj.weight": torch.zeros(H, H)}),
        r"'layers.0.eh_proj.weight' has shape \[32, 32\]; config.json wants \[32, 64\]",
    ),
    "no-module": (
        {},
        lambda t: t.clear(),
        "no MTP module here; its first would have one of 'layers.0.eh_proj",
    ),
    "architecture": (
        {"architectures": ["GPT2LMHeadModelMTP"]},
        lambda t: None,
        r"'architectures' is \['GPT2LMHeadModelMTP'\]; it must name one of .*LlamaForCausalLMMTP",
    ),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_modules_that_do_not_fit_are_refused(kind: str, tmp_path: Path, target: Model) -> None:
    save_mtp(tmp_path / "mtp", VOCAB, H, 2)
    config, change, message = MISFITS[kind]
    edit(tmp_path / "mtp", config, change)
    with pytest.raises(ModelError, match=message):
        Mtp.load(context(target, tmp_path / "mtp", 2))


def test_more_drafts_than_modules_are_refused(tmp_path: Path, target: Model) -> None:
    save_mtp(tmp_path / "mtp", VOCAB, H, 2)
    with pytest.raises(
        ModelError, match=r"has 2 modules, each for one draft; num_draft_tokens is 3, .* at most 2"
    ):
        Mtp.load(context(target, tmp_path / "mtp", {1: 3, 4: 1}))


def test_a_model_without_modules_is_told_where_to_put_them(tmp_path: Path, target: Model) -> None:
    with pytest.raises(
        ModelError, match=r"no MTP modules there; give their directory to Speculation.mtp\(path\)"
    ):
        Mtp.load(context(target, tmp_path, 2, given=False))
    with pytest.raises(ModelError, match=r"elsewhere: no such directory; give that of MTP modules"):
        Mtp.load(context(target, tmp_path / "elsewhere", 2))


def test_a_target_that_does_not_announce_its_modules_is_refused(tmp_path: Path) -> None:
    save_inside(tmp_path, "deepseek", 1)
    edit(tmp_path, {"num_nextn_predict_layers": ...}, lambda t: None)
    with pytest.raises(ModelError, match=r"unexpected tensors 'model\.layers\.3\.eh_proj\.weight'"):
        load_model(tmp_path)


def test_a_tensor_that_a_module_has_no_place_for_is_refused(tmp_path: Path) -> None:
    """The target's loader leaves it to the modules'."""
    save_inside(tmp_path, "deepseek", 1)
    edit(tmp_path, {}, lambda t: t.update({f"model.layers.{LAYERS}.mlp.gate.weight": torch.zeros(4, H)}))
    target = load_model(tmp_path)
    with pytest.raises(ModelError, match=r"unexpected tensors 'model\.layers\.3\.mlp\.gate\.weight'"):
        Mtp.load(context(target, tmp_path, 1, given=False))


def test_announced_modules_that_are_not_there_are_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "llama", vocab_size=VOCAB, hidden_size=H, num_hidden_layers=LAYERS)
    edit(tmp_path, {"num_nextn_predict_layers": 1}, lambda t: None)
    with pytest.raises(ModelError, match=r"no MTP module here; .* 'model\.layers\.3\.eh_proj\.weight'"):
        Mtp.load(context(load_model(tmp_path), tmp_path, 1, given=False))


def test_layers_may_be_of_another_architecture(tmp_path: Path, target: Model) -> None:
    """Those of Qwen3 have norms of queries and keys."""
    save_mtp(tmp_path / "mtp", VOCAB, H)
    edit(tmp_path / "mtp", {"architectures": ["Qwen3ForCausalLMMTP"]}, lambda t: None)
    with pytest.raises(ModelError, match=r"no tensor 'layers\.0\.self_attn\.q_norm\.weight'"):
        MtpModules.load(tmp_path / "mtp", target)
    norms = {f"layers.0.self_attn.{n}_norm.weight": torch.ones(H // HEADS) for n in ("q", "k")}
    edit(tmp_path / "mtp", {}, lambda t: t.update(norms))
    assert MtpModules.load(tmp_path / "mtp", target).config.qk_norm


def test_the_embedded_module_fits_the_embedded_model() -> None:
    path = package_model_path()
    target = load_model(path)
    drafter = Mtp.load(context(target, path, 8, given=False))
    assert isinstance(drafter, Mtp)
    assert drafter.draft_buffers(2).logits_BD.shape == (2, target.config.vocab_size)
