"""Measures what caches of fewer bits change: errors of logits, and tokens of greedy answers.

    python benchmarks/kv_error.py [--model NAME|DIR] [--device cpu] [--prompts 64] [--tokens 64] [--out DIRECTORY]

An engine with a float32 cache answers prompts greedily. For each other dtype, an engine then reads each prompt with
that answer, and the logits of the answer's positions are compared: `logit_error` is the root mean square of the
differences divided by `spread`, that of the logits around their mean, `top_changes` the share of positions whose most
likely token differs, and `divergence` the mean Kullback-Leibler divergence in nats. Last, the engine answers the
prompts itself: `answers_changed` is the share of answers that differ, and `first_change` the median position of the
first difference. Products on a CPU do not round their rows (`activation_dtype`), so that all errors are the cache's.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from weft import LLM, EngineConfig, SamplingParams, Speculation
from weft.ops.cached import CACHED
from weft.tiny.records import example
from weft_bench.report import Report


def llm_of(options: argparse.Namespace, name: Any) -> LLM:
    engine = EngineConfig(
        activation_dtype="float32" if options.device == "cpu" else "auto",
        kv_cache_dtype=name,
        max_batch=8,
        max_seq_len=options.length,
    )
    return LLM(options.model, device=options.device, speculation=Speculation.none(), engine=engine)


def logits_of(llm: LLM, texts: Sequence[tuple[list[int], list[int]]]) -> Iterator[Tensor]:
    """The logits [len(answer), V] that the model has for each answer after its prompt, in float32."""
    once = SamplingParams(max_tokens=1, temperature=0.0)
    for prompt, answer in texts:
        output = llm.generate(prompt + answer[:-1], sampling=once, return_context_logits=True)
        assert output.context_logits is not None
        yield torch.as_tensor(output.context_logits).float()[len(prompt) - 1 :].clone()


def compare(pairs: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Figures for pairs of exact and other logits [positions, V]. `spread` is the root mean square of the exact ones
    around their mean."""
    count, size, squares, spreads, largest, divergence, changes = 0, 0, 0.0, 0.0, 0.0, 0.0, 0
    for a, b in pairs:
        errors = a - b
        count, size = count + len(a), size + a.numel()
        squares += float(errors.square().sum())
        spreads += float((a - a.mean(1, keepdim=True)).square().sum())
        largest = max(largest, float(errors.abs().max()))
        p, q = a.log_softmax(1), b.log_softmax(1)
        divergence += float((p.exp() * (p - q)).sum())
        changes += int((a.argmax(1) != b.argmax(1)).sum())
    return {
        "logit_error": (squares / spreads) ** 0.5,
        "spread": (spreads / size) ** 0.5,
        "largest_error": largest,
        "divergence": divergence / count,
        "top_changes": changes / count,
        "positions": count,
    }


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    generator = random.Random(1)
    prompts = [example(generator, "heldout").prompt for _ in range(options.prompts)]
    greedy = SamplingParams(max_tokens=options.tokens, temperature=0.0)
    rows: list[dict[str, Any]] = []
    texts: list[tuple[list[int], list[int]]] = []
    exact: list[Tensor] = []
    for name in CACHED:
        with llm_of(options, name) as llm:
            outputs = llm.generate(prompts, sampling=greedy)
            answers = [output.token_ids for output in outputs]
            if name == "float32":
                texts = [
                    (output.prompt_token_ids, answer) for output, answer in zip(outputs, answers, strict=True)
                ]
                exact = [*logits_of(llm, texts)]
                continue
            row = {"dtype": name, **compare(zip(exact, logits_of(llm, texts), strict=True))}
        pairs = [(a, b) for (_, a), b in zip(texts, answers, strict=True) if a != b]
        same = [
            len(list(takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))) for a, b in pairs
        ]
        row["answers_changed"] = len(pairs) / len(prompts)
        row["first_change"] = statistics.median(same) if same else None
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    settings = {
        "model": Path(options.model or "weft-tiny").name,
        "prompts": options.prompts,
        "tokens": options.tokens,
    }
    report = Report("kv_error", measure(options), settings)
    console = Console()
    report.show(console)
    if options.out:
        console.print(f"wrote {report.write(options.out)}")


if __name__ == "__main__":
    main()
