"""Every architecture against transformers, from the same checkpoint: chunks, decoding, batches, fragmented
pages.
"""

from __future__ import annotations

import copy
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from weft.models.base import Model, PagedKV
from weft.models.loading import load_model
from weft.ops.attention import Rows

PAGE = 4
SMALL: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "sliding_window": None,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
PLAIN = {"rope_type": "default", "rope_theta": 300.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 8.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "short_factor": [1.0 + i / 4 for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
    "original_max_position_embeddings": 32,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0}
LATENT = {
    "num_key_value_heads": 6,
    "head_dim": 8,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 8,
    "v_head_dim": 14,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}
MSCALES = {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2}
EXPERTS = {
    "num_experts": 6,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": False}),
    "llama-tied-biased": ("Llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-rope-llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-rope-linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "llama-rope-yarn": ("Llama", {"rope_parameters": YARN}),
    "llama-rope-longrope": ("Llama", {"rope_parameters": LONGROPE}),
    "llama-rope-dynamic": ("Llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 90}),
    "llama-no-gqa": ("Llama", {"num_key_value_heads": 6, "head_dim": 8}),
    "mistral": ("Mistral", {}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True, "head_dim": 8}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "smollm3": (
        "SmolLM3",
        {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 24},
    ),
    "smollm3-listed": ("SmolLM3", {"no_rope_layers": [0, 1, 0], "attention_bias": True}),
    "arcee": ("Arcee", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "glm4": ("Glm4", {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.75}}),
    "glm4-unbiased": (
        "Glm4",
        {"rope_parameters": YARN, "attention_bias": False, "tie_word_embeddings": True},
    ),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.4,
            "logits_scaling": 5.0,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "phi3": ("Phi3", {"sliding_window": 24, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}),
    "phi3-longrope": (
        "Phi3",
        {
            "head_dim": 8,
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                **LONGROPE,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0, 1.5, 2.0],
                "long_factor": [2.0, 3.0, 5.0],
            },
        },
    ),
    "olmo2": ("Olmo2", {"attention_bias": True, "num_key_value_heads": 3}),
    "olmo3": (
        "Olmo3",
        {
            "layer_types": MIXED,
            "sliding_window": 24,
            "rope_parameters": {"sliding_attention": PLAIN, "full_attention": YARN},
        },
    ),
    "gemma": ("Gemma", {"hidden_size": 36, "attention_bias": True}),
    "gemma2": (
        "Gemma2",
        {
            "hidden_size": 36,
            "sliding_window": 24,
            "query_pre_attn_scalar": 40,
            "attn_logit_softcapping": 0.7,
            "final_logit_softcapping": 0.5,
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            "hidden_size": 36,
            "sliding_window": 24,
            "layer_types": MIXED,
            "query_pre_attn_scalar": 40,
            "final_logit_softcapping": 0.5,
            "rope_parameters": {
                "sliding_attention": PLAIN,
                "full_attention": {"rope_type": "linear", "rope_theta": 5e3, "factor": 8.0},
            },
        },
    ),
    "deepseek-v3": ("DeepseekV3", {**LATENT, "rope_parameters": MSCALES, "first_k_dense_replace": 0}),
    "deepseek-v3-biased": (
        "DeepseekV3",
        {**LATENT, "attention_bias": True, "rope_interleave": False, "norm_topk_prob": False},
    ),
    "deepseek-v3-without-q-lora": (
        "DeepseekV3",
        {
            **LATENT,
            "q_lora_rank": None,
            "attention_bias": True,
            "rope_interleave": False,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "deepseek-v2": (
        "DeepseekV2",
        {
            **LATENT,
            "rope_parameters": MSCALES,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 3.0,
        },
    ),
    "deepseek-v2-lite": ("DeepseekV2", {**LATENT, "q_lora_rank": None, "attention_bias": True}),
    "glm4-moe-lite": (
        "Glm4MoeLite",
        {**LATENT, "mlp_layer_types": ["sparse", "dense", "sparse"], "rope_interleave": False},
    ),
    "youtu": ("Youtu", LATENT),
    "minicpm3": (
        "MiniCPM3",
        {**LATENT, "attention_bias": True, "mlp_bias": True, "rope_parameters": MSCALES},
    ),
    "mixtral": ("Mixtral", {**EXPERTS, "sliding_window": 24}),
    "qwen3_moe": ("Qwen3Moe", {**EXPERTS, "mlp_only_layers": [1], "norm_topk_prob": True}),
    "qwen3_moe-sparse": (
        "Qwen3Moe",
        {**EXPERTS, "decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 24},
    ),
    "qwen2_moe": ("Qwen2Moe", {**EXPERTS, "head_dim": 8, "shared_expert_intermediate_size": 72}),
    "qwen2_moe-windows": (
        "Qwen2Moe",
        {
            **EXPERTS,
            "head_dim": 8,
            "shared_expert_intermediate_size": 24,
            "mlp_only_layers": [0],
            "norm_topk_prob": True,
            "qkv_bias": False,
            "use_sliding_window": True,
            "sliding_window": 24,
            "max_window_layers": 2,
        },
    ),
    "olmoe": ("Olmoe", {**EXPERTS, "head_dim": 8}),
    "olmoe-biased": (
        "Olmoe",
        {**EXPERTS, "head_dim": 8, "norm_topk_prob": True, "attention_bias": True},
    ),
    "gpt_oss": ("GptOss", {**EXPERTS, "sliding_window": 24, "swiglu_limit": 0.5}),
    "gpt_oss-plain": (
        "GptOss",
        {
            **EXPERTS,
            "attention_bias": False,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "sliding_window": 24,
            "swiglu_alpha": 1.2,
            "swiglu_limit": 0.3,
            "rope_parameters": PLAIN,
            "tie_word_embeddings": True,
        },
    ),
    "granitemoe": (
        "GraniteMoe",
        {
            **EXPERTS,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.4,
            "logits_scaling": 5.0,
            "tie_word_embeddings": True,
        },
    ),
}
"""The hidden sizes of Gemma are squares, so that the factor of embeddings is exact in 16 bits."""


def save_oracle(case: str, directory: Path, **saving: Any) -> Any:
    """A random transformers model of a case, saved to `directory`; norms and biases are random too."""
    name, changes = copy.deepcopy(CASES[case])  # transformers writes into the dictionaries
    network = getattr(transformers, f"{name}ForCausalLM")
    torch.manual_seed(7)
    sizes = deepcopy({**SMALL, **changes})  # transformers writes into `rope_parameters`, which cases share
    oracle = network(network.config_class(**sizes, attn_implementation="eager")).eval()
    with torch.no_grad():
        for parameter in oracle.parameters():
            parameter.normal_(std=0.15)
            if parameter.dim() == 1:
                parameter.add_(1.0)
        for name, buffer in oracle.named_buffers():
            if name.endswith("correction_bias"):
                buffer.normal_(std=0.2)
    oracle.save_pretrained(directory, **saving)
    return oracle


class Requests:
    """Texts over shared, shuffled pages, read step by step."""

    def __init__(self, model: Model, lengths: list[int], seed: int = 0) -> None:
        rng = random.Random(seed)
        vocab = model.config.vocab_size
        self.model = model
        self.tokens = [torch.tensor([rng.randrange(vocab) for _ in range(n)]) for n in lengths]
        width = -(-max(lengths) // PAGE)
        pages = list(range(1, 1 + len(lengths) * width))
        rng.shuffle(pages)
        self.table = torch.tensor(pages, dtype=torch.int32).view(len(lengths), width)
        self.kv = PagedKV.for_model(model, 1 + len(pages), PAGE)
        for group in self.kv.groups:
            group.fill_(float("nan"))  # what was never written must never be read

    def read(
        self, rows: list[int], starts: list[int], width: int, aux: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor]:
        """Logits [B, T, V] and aux of `width` tokens of some rows from their own starts."""
        tokens = torch.stack([self.tokens[r][s : s + width] for r, s in zip(rows, starts, strict=True)])
        with torch.inference_mode():
            where = Rows(self.table[rows], torch.tensor(starts), width)
            hidden = self.model.forward(tokens, self.kv, where, aux)
            return self.model.logits(hidden.last), hidden.aux


def oracle_logits(oracle: Any, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = oracle(tokens[None]).logits[0]
    return logits


@pytest.mark.parametrize("case", CASES)
def test_prefill_and_decode_match_transformers(case: str, tmp_path: Path) -> None:
    oracle = save_oracle(case, tmp_path)
    model = load_model(tmp_path)
    lengths = [57, 33, 90, 41]
    requests = Requests(model, lengths)
    wanted = [oracle_logits(oracle, t) for t in requests.tokens]

    def check(got: Tensor, row: int, start: int) -> None:
        torch.testing.assert_close(got, wanted[row][start : start + got.shape[0]], atol=1e-4, rtol=1e-4)

    begins = [20, 7, 37, 1]
    for row, prompt in enumerate(begins):
        for start in range(0, prompt, 18):
            logits, _ = requests.read([row], [start], min(18, prompt - start))
            check(logits[0], row, start)
    starts = list(begins)
    for width in (1, 4, 2, 9, 3, 1):
        order = [2, 0, 3, 1]
        logits, _ = requests.read(order, [starts[r] for r in order], width)
        for i, row in enumerate(order):
            check(logits[i], row, starts[row])
            starts[row] += width


@pytest.mark.parametrize(
    ("case", "longest"),
    [("llama-rope-longrope", 32), ("llama-rope-longrope", 40), ("llama-rope-dynamic", 120)],
)
def test_rotations_are_chosen_by_the_longest_text(case: str, longest: int, tmp_path: Path) -> None:
    """transformers chooses by the text, here one of the greatest length. The rotations of the first tokens of a longer
    text, and of a shorter text, are the same."""
    oracle = save_oracle(case, tmp_path)
    model = load_model(tmp_path, max_seq_len=longest)
    requests = Requests(model, [longest, 20])
    got = torch.cat(
        [requests.read([0], [start], min(30, longest - start))[0] for start in range(0, longest, 30)], 1
    )
    wanted = oracle_logits(oracle, requests.tokens[0])
    torch.testing.assert_close(got[0], wanted, atol=1e-4, rtol=1e-4)
    requests.tokens[1] = requests.tokens[0][:20]
    short, _ = requests.read([1], [0], 20)
    torch.testing.assert_close(short[0], got[0, :20], atol=1e-5, rtol=1e-5)


def test_refused_drafts_are_overwritten(tmp_path: Path) -> None:
    oracle = save_oracle("llama", tmp_path)
    requests = Requests(load_model(tmp_path), [30])
    requests.read([0], [0], 20)
    right = requests.tokens[0].clone()
    requests.tokens[0][21:24] = (right[21:24] + 1) % 101
    requests.read([0], [20], 4)
    requests.tokens[0] = right
    logits, _ = requests.read([0], [21], 4)
    torch.testing.assert_close(logits[0], oracle_logits(oracle, right)[21:25], atol=1e-4, rtol=1e-4)


def test_a_row_does_not_notice_its_neighbours(tmp_path: Path) -> None:
    save_oracle("llama", tmp_path)
    model = load_model(tmp_path)
    requests = Requests(model, [40] * 8)
    for row in range(8):
        requests.read([row], [0], 10 + row)
    starts = [10 + row for row in range(8)]
    alone = torch.cat([requests.read([r], [starts[r]], 4)[0] for r in range(8)])
    requests.kv.groups[0][:, requests.table[3].long()] = float("nan")
    together, _ = requests.read(list(range(8)), starts, 4)
    assert together[3].isnan().any()
    keep = [0, 1, 2, 4, 5, 6, 7]
    assert torch.equal(together[keep], alone[keep])


def test_aux_layers_are_the_states_entering_them(tmp_path: Path) -> None:
    oracle = save_oracle("llama", tmp_path)
    requests = Requests(load_model(tmp_path), [25])
    aux_layers = (2, 0, 3)
    _, aux = requests.read([0], [0], 25, aux_layers)
    states: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, args, kwargs: states.append(args[0]), with_kwargs=True)
        for layer in oracle.model.layers
    ]
    hooks.append(oracle.model.norm.register_forward_pre_hook(lambda _, args: states.append(args[0])))
    with torch.no_grad():
        hidden_states = oracle(requests.tokens[0][None], output_hidden_states=True).hidden_states
    for hook in hooks:
        hook.remove()
    assert torch.equal(states[2], hidden_states[2])
    wanted = torch.cat([states[i] for i in aux_layers], -1)
    torch.testing.assert_close(aux, wanted, atol=1e-4, rtol=1e-4)


def test_a_layer_may_be_asked_for_more_than_once(tmp_path: Path) -> None:
    save_oracle("llama", tmp_path)
    model = load_model(tmp_path)
    last = model.config.num_layers + 1
    for twice in (0, 1, last - 1, last):
        _, both = Requests(model, [5]).read([0], [0], 5, (twice, twice))
        _, once = Requests(model, [5]).read([0], [0], 5, (twice,))
        assert torch.equal(both, torch.cat((once, once), -1))


def test_without_aux_layers_aux_has_no_width(tmp_path: Path) -> None:
    save_oracle("llama", tmp_path)
    _, aux = Requests(load_model(tmp_path), [5]).read([0], [0], 5)
    assert aux.shape == (1, 5, 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("case", CASES)
def test_weights_of_16_bits_are_rounded_and_nothing_else_is(case: str, dtype: str, tmp_path: Path) -> None:
    """The CPU computes in float32, so that transformers does too, with weights rounded as weft's are: they agree as
    closely as with weights of float32."""
    oracle = save_oracle(case, tmp_path)
    for parameter in oracle.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype)).float()
    requests = Requests(load_model(tmp_path, dtype=dtype, activation_dtype="float32"), [40])
    wanted = oracle_logits(oracle, requests.tokens[0])
    for start, width in ((0, 30), (30, 1), (31, 4)):
        got, _ = requests.read([0], [start], width)
        torch.testing.assert_close(got[0], wanted[start : start + width], atol=1e-4, rtol=1e-4)


def test_positions_beyond_the_page_table_are_not_written(tmp_path: Path) -> None:
    save_oracle("llama", tmp_path)
    model = load_model(tmp_path)
    kv = PagedKV.for_model(model, 4, PAGE)
    table = torch.tensor([[2]], dtype=torch.int32)
    with torch.inference_mode():
        model.forward(torch.zeros(1, 4, dtype=torch.int64), kv, Rows(table, torch.tensor([0]), 4))
        before = kv.groups[0][:, 1:].clone()
        model.forward(torch.ones(1, 2, dtype=torch.int64), kv, Rows(table, torch.tensor([1000]), 2))
    assert before[:, 1].any()
    assert torch.equal(kv.groups[0][:, 1:], before)


def test_rows_refuse_wrong_types_and_shapes() -> None:
    table, base = torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(TypeError, match="int32"):
        Rows(table.long(), base, 1)
    with pytest.raises(TypeError, match=r"here \[2\], not torch.int64 \[1\]"):
        Rows(table, base[:1], 1)
    with pytest.raises(TypeError, match=r"not torch.int32"):
        Rows(table, base, 1, count=base.int())
    with pytest.raises(TypeError, match=r"here \[3\]"):
        Rows(table, base, 1, starts=base)
