"""Names of a Llama's tensors in GGUF files and in model directories, and their shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.models.config import ModelConfig

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"

_OUTSIDE = {
    EMBEDDING: "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    OUTPUT: "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True)
class Entry:
    """A tensor's names in a GGUF file and in a model directory, and its shape. `heads` is the number of heads if rotary
    embedding applies to its rows, else 0. GGUF stores such rows in another order (`rotation.py`)."""

    gguf: str
    directory: str
    shape: tuple[int, ...]
    heads: int = 0


def entries(config: ModelConfig) -> Iterator[Entry]:
    """All tensors of a Llama without biases, layer by layer."""
    hidden, vocab = config.hidden_size, config.vocab_size
    yield Entry(EMBEDDING, _OUTSIDE[EMBEDDING], (vocab, hidden))
    for layer in range(config.num_layers):
        for name, shape in _layer_shapes(config).items():
            heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}.get(name, 0)
            inside = f"model.layers.{layer}.{_IN_LAYER[name]}.weight"
            yield Entry(f"blk.{layer}.{name}.weight", inside, shape, heads)
    yield Entry("output_norm.weight", _OUTSIDE["output_norm.weight"], (hidden,))
    if not config.tie_word_embeddings:
        yield Entry(OUTPUT, _OUTSIDE[OUTPUT], (vocab, hidden))


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "attn_norm": (hidden,),
        "attn_q": (queries, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_output": (hidden, queries),
        "ffn_norm": (hidden,),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
