"""Compares guided weft with EAGLE3 to transformers + xgrammar, on the same checkpoint, machine and prompts.

    python benchmarks/vs_transformers.py [--prompts 40] [--rounds 3] [--drafts 5] [--out benchmarks/results]

Batch 1, greedy, two torch threads for each. The plain loop is typical user code for both libraries: transformers'
forward with its KV cache, and xgrammar's matcher through its Python API, token by token. Each round runs all prompts
with one engine after the other. The first round only warms up. All engines must give the same answers. Compiling the
schemas is never timed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import xgrammar as xgr
from rich.console import Console
from transformers import AutoModelForCausalLM

from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation
from weft.tiny.records import example
from weft_bench.report import Report

MAX_TOKENS = 160


@torch.inference_mode()
def plain_loop(
    model: AutoModelForCausalLM, ids: list[int], compiled: xgr.CompiledGrammar, end: int
) -> list[int]:
    """Decode greedily under a guide with transformers and xgrammar."""
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--drafts", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rng = random.Random(77)
    records = [example(rng, "heldout") for _ in range(options.prompts)]

    engine = EngineConfig(max_batch=1, grammar="xgrammar")
    plain = LLM(device="cpu", engine=engine)
    speculation = Speculation.eagle3(num_draft_tokens=options.drafts)
    fast = LLM(device="cpu", engine=engine, speculation=speculation)
    model = AutoModelForCausalLM.from_pretrained(fast.model_path, dtype=torch.float32).eval()
    end = fast.tokenizer.eos_token_id
    sampling = SamplingParams(max_tokens=MAX_TOKENS)
    # max_whitespace as in the published figures
    guides = [Guide.json_schema(record.schema, max_whitespace=8) for record in records]
    compiled = [fast.compile(guide).result().compiled for guide in guides]
    prompts = [fast.tokenizer.encode(record.prompt) for record in records]
    for guide in guides:
        plain.compile(guide).result()

    engines: dict[str, Callable[[int], list[int]]] = {
        "transformers + xgrammar": lambda i: plain_loop(model, prompts[i], compiled[i], end),
        "weft": lambda i: plain.generate(prompts[i], guide=guides[i], sampling=sampling).token_ids,
        "weft + EAGLE3": lambda i: fast.generate(prompts[i], guide=guides[i], sampling=sampling).token_ids,
    }
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    answers: dict[str, list[list[int]]] = {}
    for turn in range(options.rounds + 1):
        for name, answer in engines.items():
            answers[name] = []
            for i in range(len(records)):
                begin = time.perf_counter()
                answers[name].append(answer(i))
                if turn:
                    seconds[name].append(time.perf_counter() - begin)
    reference = answers["transformers + xgrammar"]
    different = sum(a != b for got in answers.values() for a, b in zip(got, reference, strict=True))
    tokens = options.rounds * sum(map(len, reference))
    stats = [fast.generate(p, guide=g, sampling=sampling).stats for p, g in zip(prompts, guides, strict=True)]
    tokens = sum(s.drafted_tokens for s in stats)
    drafted = sum(s.drafted_iterations for s in stats)

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
            "acceptance_length": tokens / drafted,
            "answers_that_differ": different,
            "prompts": options.prompts,
            "rounds": options.rounds,
            "num_draft_tokens": options.drafts,
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
