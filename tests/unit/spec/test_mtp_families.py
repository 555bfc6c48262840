"""MTP modules whose layers are those of their family: latent attention, gated attention, mixtures. The oracle is
transformers' layer: the last of a network, which the checkpoint names as a module's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.engine.drafting import PAGE, PAGES, SLOTS, Drafting, Oracle
from support.families import DELTA, save
from support.mtp_families import FAMILIES, HIDDEN, LAYERS, PARTS, QWENS, save_with_module
from weft.client.model_facts import ModelFacts, drafter_lines
from weft.config import Speculation
from weft.errors import ModelError
from weft.models.base import Model
from weft.models.loading import load_model
from weft.models.mtp_module import MtpModules
from weft.models.qwen3_5 import Qwen35, Qwen35Moe
from weft.spec.base import DrafterContext
from weft.spec.mtp import Mtp

TWO = {"mtp_num_hidden_layers": 2}


def layer_of(network: Any) -> Callable[[Tensor], Tensor]:
    """transformers' last decoder layer, on a text's rows [L, H]."""

    def run(x: Tensor) -> Tensor:
        positions = torch.arange(len(x))[None]
        hidden = torch.full((len(x), len(x)), -torch.inf).triu(1)[None, None]
        rotary = network.model.rotary_emb(x[None], positions)
        out = network.model.layers[LAYERS](
            x[None], attention_mask=hidden, position_ids=positions, position_embeddings=rotary
        )
        return out[0] if out.dim() == 3 else out

    return run


def oracle_of(network: Any, parts: dict[str, Tensor], target: Model, norm_offset: float) -> Oracle:
    layer, eps = layer_of(network), network.config.rms_norm_eps

    def rms(x: Tensor, name: str) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * (parts[name] + norm_offset)

    def logits(tokens: Tensor, hidden: Tensor, drafts: list[int]) -> Tensor:
        behind = tokens[1:]
        for draft in [*drafts, None]:
            embedded = network.get_input_embeddings()(behind)
            both = torch.cat((rms(embedded, "embedding"), rms(hidden, "hidden")), -1)
            out = rms(layer(both @ parts["projection"].T), "output")
            if draft is not None:
                behind = torch.cat((behind, torch.tensor([draft])))
                hidden = torch.cat((hidden, out[-1:]))
        return target.logits(out[-1:], is_normed=True)[0]

    return logits


@pytest.mark.parametrize("name", FAMILIES)
def test_drafts_are_those_of_transformers_layer(name: str, tmp_path: Path) -> None:
    network, parts = save_with_module(tmp_path, name)
    network.set_attn_implementation("eager")
    target = load_model(tmp_path)
    assert target.config.why_generic == ""
    assert target.config.num_mtp_modules == 1
    speculation = Speculation.mtp(num_draft_tokens=3)
    context = DrafterContext(speculation, tmp_path, target, SLOTS, SLOTS * PAGES + 1, PAGE, PAGES * PAGE)
    drafter = Mtp.load(context)
    assert drafter.aux_layers == (LAYERS + 1,)
    oracle = oracle_of(network, parts, target, FAMILIES[name].norm_offset)
    drafting = Drafting(drafter, drafter.kv, oracle, target.config.vocab_size, HIDDEN, seed=0)
    drafting.run(3, [0, 1, 3])
    assert drafting.compared > 0


def test_drafts_of_qwens_module_in_a_directory_of_its_own(tmp_path: Path) -> None:
    """Its config counts modules only, so that by the family's pattern no layer would have pages."""
    network, parts = save_with_module(tmp_path, "qwen3_next")
    network.set_attn_implementation("eager")
    target = load_model(tmp_path)
    save_apart(tmp_path, tmp_path / "mtp", "qwen3_next", "Qwen3NextForCausalLMMTP")
    speculation = Speculation.mtp(tmp_path / "mtp", num_draft_tokens=3)
    context = DrafterContext(speculation, tmp_path, target, SLOTS, SLOTS * PAGES + 1, PAGE, PAGES * PAGE)
    drafter = Mtp.load(context)
    oracle = oracle_of(network, parts, target, FAMILIES["qwen3_next"].norm_offset)
    drafting = Drafting(drafter, drafter.kv, oracle, target.config.vocab_size, HIDDEN, seed=0)
    drafting.run(3, [0, 1, 3])
    assert drafting.compared > 0


def save_apart(checkpoint: Path, directory: Path, name: str, architecture: str) -> None:
    """Save the module of a checkpoint of `save_with_module` in a directory of its own."""
    family, plain = FAMILIES[name], {FAMILIES[name].names[part]: PARTS[part] for part in PARTS}
    tensors = {}
    for key, tensor in load_file(checkpoint / "model.safetensors").items():
        part = key.removeprefix(family.prefix).removesuffix(".weight")
        if key.startswith(family.layer):
            tensors[f"layers.0.{key.removeprefix(family.layer)}"] = tensor
        elif key.startswith(family.prefix):
            tensors[f"layers.0.{plain[part]}.weight"] = tensor
    config = json.loads((checkpoint / "config.json").read_text())
    config |= {"architectures": [architecture], "num_nextn_predict_layers": 1}
    del config["num_hidden_layers"], config["layer_types"]
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("family", [Qwen35, Qwen35Moe])
@pytest.mark.parametrize(("counted", "modules"), [({}, 1), ({"mtp_num_hidden_layers": 0}, 0), (TWO, 2)])
def test_the_key_of_qwen3_5_counts_modules(
    family: type[Qwen35], counted: dict[str, int], modules: int
) -> None:
    """0 is a checkpoint without modules."""
    assert family.parse_config(counted, "config.json").num_mtp_modules == modules
    text = {"text_config": counted}
    assert family.parse_config(text, "config.json").num_mtp_modules == modules


def test_modules_of_a_qwen3_5_in_its_checkpoint(tmp_path: Path) -> None:
    """The second is a copy of the first."""
    save("qwen3_5_text", {**DELTA, "tie_word_embeddings": False}, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    last = "model.layers.3."
    layer = {key.removeprefix(last): t for key, t in tensors.items() if key.startswith(last)}
    tensors |= {f"mtp.layers.{m}.{key}": t.clone() for m in range(2) for key, t in layer.items()}
    tensors |= {
        f"mtp.{QWENS[part]}.weight": torch.zeros(HIDDEN) for part in ("embedding", "hidden", "output")
    }
    tensors |= {f"mtp.{QWENS['projection']}.weight": torch.eye(HIDDEN, 2 * HIDDEN)}
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **TWO}))
    assert len(MtpModules.load(tmp_path, load_model(tmp_path)).modules) == 2


def test_a_qwen3_next_may_lack_its_module(tmp_path: Path) -> None:
    """transformers saves none."""
    save("qwen3_next", DELTA, tmp_path)
    facts = ModelFacts.read(tmp_path, torch.device("cpu"))
    assert "MTP layers: none (no mtp/)" in drafter_lines(facts)
    with pytest.raises(ModelError, match=r"no MTP module here; .* 'mtp\.fc\.weight'"):
        MtpModules.load(tmp_path, facts.model)
    save_with_module(tmp_path, "qwen3_next")
    assert "MTP layers: 1, in the weights" in drafter_lines(ModelFacts.read(tmp_path, torch.device("cpu")))
