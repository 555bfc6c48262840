"""Compares weft's greedy answers from a GGUF file of a Llama with those of its numbers in float32.

    python benchmarks/reference_tokens.py --file FILE.gguf [--tokens 48] [--out DIRECTORY]

The reference is transformers' Llama in float32, whose weights the package gguf dequantises. It reads each of 64 prompts
with weft's answer. As long as each token is the first choice of the reference, the answer is the reference's greedy
one. At the first other token, `gap` is the reference's logit of its first choice minus that of weft's token.

A row is one pair of settings: rows and cache in float32, or weft's defaults.

- `equal_answers`: the answers with no other token, and `first_change` the median position of the first one.
- `largest_gap`: the largest gap ÷ the spread, the root mean square of the reference's logits around their mean.
- `gap_in_errors`: the largest gap ÷ the root mean square of the logits' errors.
- `rounded_error`: the `logit_error` of the reference if it rounds the inputs of its products to 8 bits as weft does.
- `logit_error` and the figures after it: as in `kv_error.py`, at the answers' positions.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from torch import Tensor, nn

from kv_error import compare, logits_of
from peers.checkpoints import Checkpoint
from peers.prompts import pool
from weft import LLM, EngineConfig, SamplingParams, Speculation
from weft.config import model_directory
from weft_bench.report import Report

SETTINGS = (("float32", "float32"), ("auto", "auto"))
"""How rows are rounded, and the dtype of the cache."""


def reference(file: Path) -> Any:
    """Transformers' Llama in float32 with the numbers of a GGUF file, as the package gguf reads it."""
    import gguf
    import gguf.quants
    import transformers

    reader = gguf.GGUFReader(file)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    if "rope_freqs.weight" in stored:
        raise ValueError(f"{file}: has scaled rotary embedding, which the reference does not have")

    def value(key: str) -> Any:
        field = reader.get_field(f"llama.{key}")
        return None if field is None else field.contents()

    heads = {"q_proj": value("attention.head_count"), "k_proj": value("attention.head_count_kv")}
    config = transformers.LlamaConfig(
        vocab_size=len(stored["token_embd.weight"].data),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=heads["q_proj"],
        num_key_value_heads=heads["k_proj"],
        head_dim=value("attention.key_length") or value("embedding_length") // heads["q_proj"],
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base")},
        tie_word_embeddings="output.weight" not in stored,
        dtype=torch.float32,
    )
    network = transformers.LlamaForCausalLM(config).eval()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    with torch.no_grad():
        for name, weights in network.named_parameters():
            tensor = stored.pop(names.get_name(name, try_suffixes=(".weight",)))
            numbers = torch.tensor(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
            kind = name.split(".")[-2]
            if kind in heads:  # a file has the two numbers that a rotation mixes side by side
                numbers = numbers.unflatten(0, (heads[kind], -1, 2)).transpose(1, 2).flatten(0, 2)
            weights.copy_(numbers)
    if stored:
        raise ValueError(f"{file}: has tensors that a Llama does not have: {', '.join(stored)}")
    return network


def reference_logits(network: Any, texts: Sequence[tuple[list[int], list[int]]]) -> Iterator[Tensor]:
    """The reference's logits [len(answer), V] for each answer after its prompt, in float32."""
    for prompt, answer in texts:
        with torch.inference_mode():
            kept = len(answer)  # positions at the end
            yield network(torch.tensor([prompt + answer[:-1]]), logits_to_keep=kept).logits[0]


@contextmanager
def rounded_rows(network: Any) -> Iterator[None]:
    """While it is open, the products of a network get inputs of 8 bits: each 32 in steps of their largest magnitude
    divided by 127."""

    def rounded(_: nn.Module, arguments: tuple[Tensor]) -> Any:
        blocks = arguments[0].unflatten(-1, (-1, 32))
        step = (blocks.abs().amax(-1, keepdim=True) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        return ((blocks / step).round() * step).flatten(-2)

    hooks = [
        part.register_forward_pre_hook(rounded) for part in network.modules() if isinstance(part, nn.Linear)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class Change(NamedTuple):
    """The first token of an answer that is not the reference's: its position, and how much larger the reference's logit
    of its first choice is."""

    position: int
    gap: float


def first_change(answer: list[int], logits: Tensor) -> Change | None:
    """The first change of an answer, for the reference's `logits` [len(answer), V]; None if there is none."""
    gaps = logits.max(1).values - logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
    changed = gaps.nonzero()
    return Change(int(changed[0]), float(gaps[changed[0]])) if len(changed) else None


def row(
    file: Path, network: Any, prompts: Sequence[str | list[int]], num_tokens: int, settings: tuple[Any, Any]
) -> dict[str, Any]:
    """The row of the report for rows and a cache of `settings`."""
    activations, cache = settings
    engine = EngineConfig(
        activation_dtype=activations,
        kv_cache_dtype=cache,
        max_batch=8,
        max_seq_len=512,
        max_num_tokens=512,
    )
    greedy = SamplingParams(max_tokens=num_tokens, temperature=0.0)
    with LLM(file, device="cpu", speculation=Speculation.none(), engine=engine) as llm:
        outputs = llm.generate([*prompts], sampling=greedy)
        texts = [(output.prompt_token_ids, output.token_ids) for output in outputs]
        exact = [*reference_logits(network, texts)]
        figures = compare(zip(exact, logits_of(llm, texts), strict=True))
    rounded_error = None
    if activations != "float32":
        with rounded_rows(network):
            rounded_error = compare(zip(exact, reference_logits(network, texts), strict=True))["logit_error"]
    found = [first_change(answer, logits) for (_, answer), logits in zip(texts, exact, strict=True)]
    changes = [change for change in found if change is not None]
    gap = max((change.gap for change in changes), default=0.0)
    spread = figures.pop("spread")
    return {
        "activations": activations,
        "cache": cache,
        "answers": len(texts),
        "equal_answers": len(texts) - len(changes),
        "first_change": statistics.median(change.position for change in changes) if changes else None,
        "largest_gap": gap / spread,
        "gap_in_errors": gap / spread / figures["logit_error"],
        "rounded_error": rounded_error,
        **figures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    checkpoint = Checkpoint(
        options.file.stem, model_directory(options.file), "", 0, options.tokens, 512, Path()
    )
    prompts = [prompt.ids for prompt in pool(checkpoint)]
    network = reference(options.file)
    rows = [row(options.file, network, prompts, options.tokens, settings) for settings in SETTINGS]
    report = Report("reference_tokens", rows, {"file": options.file.name, "tokens": options.tokens})
    console = Console()
    report.show(console)
    if options.out:
        console.print(f"wrote {report.write(options.out)}")


if __name__ == "__main__":
    main()
