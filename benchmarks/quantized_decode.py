"""Measures how fast one user decodes a random Llama in quantised GGUF files, beside llama.cpp and beside a plain read.

    python benchmarks/quantized_decode.py --tokenizer DIRECTORY [--types Q4_K_M Q8_0] [--llamacpp .peers/llamacpp]
        [--cache .peers/cache] [--threads 2] [--rounds 3] [--out DIRECTORY]

The model has the shape of SmolLM2-1.7B and random weights. llama.cpp's `llama-quantize` makes the files from one in
bfloat16. `python -m benchmarks.peers --setup` builds that program. `--tokenizer` is a model directory whose tokenizer
the files get.

In each round, weft and `llama-bench` decode in turn, without drafts and after a prompt of one token. `gb_s` are the
bytes that a token reads, as stored in the file, times tokens per second. `of_read` compares them with a plain read of
1 GiB in pages of 2 MB by as many threads, in the same round. All figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from weft import LLM, EngineConfig, SamplingParams, Speculation
from weft.models.gguf.header import read_header
from weft.models.gguf.writing import directory_to_gguf
from weft.ops.huge_pages import reserved
from weft_bench.cli.app import finish
from weft_bench.report import Report

HIDDEN, INNER, LAYERS, HEADS, VOCAB = 2048, 8192, 24, 32, 49152
READ = 1 << 30


def random_llama(directory: Path) -> Path:
    """Make the model's directory, unless it exists. Its weights have the spread of a trained model's."""
    if (directory / "config.json").exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16) * 0.02

    tensors = {"model.embed_tokens.weight": random(VOCAB, HIDDEN), "model.norm.weight": torch.ones(HIDDEN)}
    for layer in range(LAYERS):
        inside = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{inside}{name}.weight"] = torch.ones(HIDDEN)
        for name in "qkvo":
            tensors[f"{inside}self_attn.{name}_proj.weight"] = random(HIDDEN, HIDDEN)
        for name in ("gate", "up"):
            tensors[f"{inside}mlp.{name}_proj.weight"] = random(INNER, HIDDEN)
        tensors[f"{inside}mlp.down_proj.weight"] = random(HIDDEN, INNER)
    save_file(tensors, directory / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 130000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def quantized_file(options: argparse.Namespace, kind: str) -> Path:
    """Make the model's file of a type, unless it exists."""
    file: Path = options.cache / f"random-1.7B-{kind}.gguf"
    if not file.exists():
        dense = options.cache / "random-1.7B-bfloat16.gguf"
        if not dense.exists():
            directory = random_llama(options.cache / "random-1.7B")
            directory_to_gguf(directory, dense, "bfloat16", tokenizer=options.tokenizer)
        part = file.with_suffix(".part")
        command = [options.llamacpp / "bin" / "llama-quantize", dense, part, kind]
        subprocess.run([*map(str, command)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        part.rename(file)
    return file


def in_a_process(function: Any, *arguments: Any) -> Any:
    """Call a function in another process, so that nothing of the last measurement stays in memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def plain_read(threads: int) -> float:
    """Bytes per second of torch's sum of float32: the best of some times."""
    torch.set_num_threads(threads)
    memory = reserved((READ // 4,), torch.float32).fill_(1)
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        memory.sum()
        seconds.append(time.perf_counter() - begin)
    return READ / min(seconds)


def weft_rate(file: Path, threads: int, tokens: int) -> float:
    """Tokens per second of weft, after the first token."""
    torch.set_num_threads(threads)
    engine = EngineConfig(max_batch=1, max_seq_len=tokens + 8, reuse=False)
    llm = LLM(file, device="cpu", speculation=Speculation.none(), engine=engine)
    llm.warm_up()
    output = llm.generate([1], sampling=SamplingParams(max_tokens=tokens, min_tokens=tokens))
    assert output.stats.first_token_at is not None and output.stats.last_token_at is not None
    return (tokens - 1) / (output.stats.last_token_at - output.stats.first_token_at)


def llamacpp_rate(options: argparse.Namespace, file: Path) -> float:
    """Tokens per second of llama.cpp."""
    command = [options.llamacpp / "bin" / "llama-bench", "-m", file, "-t", options.threads, "-p", 0]
    command += ["-n", options.tokens, "-r", 1, "-fa", 1, "-o", "json"]
    done = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)[0]["avg_ts"])


def measure(options: argparse.Namespace, kind: str) -> dict[str, Any]:
    """The row of the report for a type of file."""
    file = quantized_file(options, kind)
    size = sum(entry.end - entry.begin for entry in read_header(file).tensors.values())
    rounds = []
    for _ in range(options.rounds):
        read = max(in_a_process(plain_read, threads) for threads in {1, options.threads})
        rounds.append(
            (
                read,
                in_a_process(weft_rate, file, options.threads, options.tokens),
                llamacpp_rate(options, file),
            )
        )
    return {
        "type": kind,
        "weights_gb": size / 1e9,
        "read_gb_s": statistics.median(read for read, _, _ in rounds) / 1e9,
        "weft_tokens_s": statistics.median(weft for _, weft, _ in rounds),
        "llamacpp_tokens_s": statistics.median(llamacpp for _, _, llamacpp in rounds),
        "weft_gb_s": statistics.median(size * weft for _, weft, _ in rounds) / 1e9,
        "of_read": statistics.median(size * weft / read for read, weft, _ in rounds),
        "llamacpp_of_read": statistics.median(size * llamacpp / read for read, _, llamacpp in rounds),
        "ratio": statistics.median(weft / llamacpp for _, weft, llamacpp in rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--types", nargs="+", default=["Q4_K_M", "Q8_0"], help="names of llama-quantize")
    parser.add_argument("--llamacpp", type=Path, default=Path(".peers/llamacpp"))
    parser.add_argument("--cache", type=Path, default=Path(".peers/cache"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [measure(options, kind) for kind in options.types]
    shape = {"hidden": HIDDEN, "inner": INNER, "layers": LAYERS, "heads": HEADS, "vocabulary": VOCAB}
    report = Report("quantized_decode", rows, {**shape, "threads": options.threads})
    finish(report, options.out)


if __name__ == "__main__":
    main()
