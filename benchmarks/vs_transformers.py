"""weft guided + EAGLE3 against transformers + xgrammar: one checkpoint, one machine, the same prompts and schemas.

    python benchmarks/vs_transformers.py [--prompts 40] [--out benchmarks/results]

Batch 1, greedy, two torch threads for each. The plain loop is what a user of both libraries writes: transformers'
forward with its KV cache, xgrammar's matcher through its Python API, one token at a time. Runs are interleaved prompt
by prompt, and both must give the same answers. Compilation of the schema is left out on both sides.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

import torch
import xgrammar as xgr
from rich.console import Console
from transformers import AutoModelForCausalLM

from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation
from weft.bench.records import example
from weft.bench.report import Report

MAX_TOKENS = 160


@torch.inference_mode()
def plain_loop(
    model: AutoModelForCausalLM, ids: list[int], compiled: xgr.CompiledGrammar, end: int
) -> list[int]:
    """Greedy guided decoding with transformers and xgrammar."""
    matcher = xgr.GrammarMatcher(compiled)
    mask = xgr.allocate_token_bitmask(1, model.config.vocab_size)
    inputs, past, tokens = torch.tensor([ids]), None, []
    while len(tokens) < MAX_TOKENS:
        out = model(inputs, past_key_values=past, use_cache=True)
        past, logits = out.past_key_values, out.logits[:, -1]
        matcher.fill_next_token_bitmask(mask)
        xgr.apply_token_bitmask_inplace(logits, mask, vocab_size=model.config.vocab_size)
        token = int(logits.argmax())
        matcher.accept_token(token)
        tokens.append(token)
        if token == end:
            break
        inputs = torch.tensor([[token]])
    return tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rng = random.Random(77)
    records = [example(rng, "heldout") for _ in range(options.prompts)]

    engine = EngineConfig(max_batch=1)
    plain = LLM(device="cpu", engine=engine)
    fast = LLM(device="cpu", engine=engine, speculation=Speculation.eagle3(num_draft_tokens=3))
    model = AutoModelForCausalLM.from_pretrained(fast.model_path, dtype=torch.float32).eval()
    end = fast.tokenizer.eos_token_id
    sampling = SamplingParams(max_tokens=MAX_TOKENS)

    seconds: dict[str, list[float]] = {"transformers + xgrammar": [], "weft": [], "weft + EAGLE3": []}
    tokens = accepted = drafted = different = 0
    for i, record in enumerate(records):
        guide = Guide.json_schema(record.schema)
        compiled = fast.compile(guide).result()
        plain.compile(guide).result()
        ids = fast.tokenizer.encode(record.prompt)
        if i == 0:
            plain_loop(model, ids, compiled.compiled, end)
            plain.generate(ids, guide=guide, sampling=sampling)
            fast.generate(ids, guide=guide, sampling=sampling)
        begin = time.perf_counter()
        expected = plain_loop(model, ids, compiled.compiled, end)
        seconds["transformers + xgrammar"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        first = plain.generate(ids, guide=guide, sampling=sampling)
        seconds["weft"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        second = fast.generate(ids, guide=guide, sampling=sampling)
        seconds["weft + EAGLE3"].append(time.perf_counter() - begin)
        tokens += len(expected)
        accepted += second.stats.accepted_drafts
        drafted += second.stats.drafted_iterations
        different += (first.token_ids != expected) + (second.token_ids != expected)

    base = sum(seconds["transformers + xgrammar"])
    rows = [
        {
            "engine": name,
            "tokens_per_s": tokens / sum(times),
            "median_s": statistics.median(times),
            "ratio": base / sum(times),
        }
        for name, times in seconds.items()
    ]
    report = Report(
        "vs_transformers",
        rows,
        {
            "ratio": base / sum(seconds["weft + EAGLE3"]),
            "acceptance_length": 1 + accepted / drafted,
            "answers_that_differ": different,
            "prompts": options.prompts,
            "tokens": tokens,
            "threads": options.threads,
        },
    )
    console = Console()
    report.show(console)
    if options.out:
        console.print(f"wrote {report.write(options.out)}")
    plain.close()
    fast.close()


if __name__ == "__main__":
    main()
