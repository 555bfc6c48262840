"""Compares the time to the first token with the arithmetic of the prompt's forward.

    .venv/bin/python benchmarks/first_token.py [--tokens 98] [--model weft-tiny] [--speculation none,eagle3]
        [--out benchmarks/results]

The arithmetic is the multiply-adds of the target's forward: all matrices of the layers and causal attention for every
token, the LM head for the last one. Its rate is that of the largest product of a layer with 512 rows, by torch in
float32 or by weft's kernel, whichever is faster. `ratio` is the time to the first token divided by the time of the
arithmetic at this rate. An ideal engine is at 1. A drafter's arithmetic does not count as such.

Each drafter has a row for requests without a guide and one for requests with a guide, which is compiled before.
Products and prompts of all rows alternate, and the ratio is the median over turns. Prompts are random tokens, and no
prefix is reused.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Annotated

import torch
import typer

from weft import LLM, EngineConfig, Guide, SamplingParams
from weft.errors import InputError
from weft.models.config import ModelConfig
from weft.ops.linear import Linear
from weft_bench.cli.app import OutOption, finish, measured, script
from weft_bench.engine.bandwidth import decoder_size
from weft_bench.report import Report
from weft_bench.serve.setup import DRAFTERS

GUIDE = Guide.regex("[a-z ]{9,}")
LARGE = 512
"""The rows of a large product."""
WARM_UP = 3
PAUSE_S = 0.05
"""The time between products and prompts. torch's threads still spin for a while after a product."""
PRODUCTS = 20
"""The number of products of each kind in a turn. The fastest counts."""


def multiply_adds(config: ModelConfig, num_tokens: int) -> int:
    """Return the number of multiply-adds of a forward over a prompt, with logits for its last token."""
    heads = config.num_heads * config.head_dim
    attention = 2 * heads * num_tokens * (num_tokens + 1) // 2
    layer = decoder_size(config, config.hidden_size) * num_tokens + attention
    return config.num_layers * layer + config.vocab_size * config.hidden_size


def largest_product(config: ModelConfig) -> tuple[int, int]:
    """Return the outputs and inputs of the largest matrix of a layer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    attention = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return max(
        ((attention, hidden), (2 * inner, hidden), (hidden, inner)), key=lambda shape: shape[0] * shape[1]
    )


class Products:
    """The largest product of a layer with `LARGE` rows, by torch and by weft."""

    def __init__(self, config: ModelConfig) -> None:
        outputs, inputs = largest_product(config)
        x, weight = torch.randn(LARGE, inputs), torch.randn(outputs, inputs)
        linear, out = Linear(weight.to(config.dtype)), torch.empty(LARGE, outputs)
        self.shape = (LARGE, inputs, outputs)
        self._kinds: dict[str, Callable[[], object]] = {
            "torch": lambda: torch.mm(x, weight.t(), out=out),
            "weft": lambda: linear(x, out=out),
        }

    def rates(self) -> dict[str, float]:
        """Measure the multiply-adds per second of each kind."""
        size = self.shape[0] * self.shape[1] * self.shape[2]
        return {kind: size / min(_seconds(run) for _ in range(PRODUCTS)) for kind, run in self._kinds.items()}


def _seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


class Row:
    """A drafter, and whether requests have a guide, with the results of its turns: seconds to the first token, and
    their ratio to the arithmetic."""

    def __init__(self, llm: LLM, guide: Guide | None) -> None:
        self.llm, self.guide = llm, guide
        self.seconds: list[float] = []
        self.ratios: list[float] = []

    def answer(self, prompt: list[int]) -> float:
        """Return the seconds to the first token of a prompt's answer."""
        output = self.llm.generate(prompt, guide=self.guide, sampling=SamplingParams(max_tokens=1))
        return output.stats.time_to_first_token_s


def run(model: str, speculation: str, num_drafts: int, tokens: int, repeat: int, threads: int) -> Report:
    """Return two rows for each drafter."""
    torch.set_num_threads(threads)
    names = [name.strip() for name in speculation.split(",")]
    unknown = [name for name in names if name not in DRAFTERS]
    if unknown:
        raise InputError(f"speculation is {unknown[0]!r}; it must be of {', '.join(DRAFTERS)}")
    config = EngineConfig(max_batch=1, max_seq_len=tokens + 32, reuse=False)
    rng, rates = random.Random(0), list[dict[str, float]]()
    with ExitStack() as stack:
        rows: list[Row] = []
        for name in names:
            drafting = DRAFTERS[name](num_drafts)
            llm = stack.enter_context(LLM(model, device="cpu", speculation=drafting, engine=config))
            llm.compile(GUIDE).result()
            llm.warm_up()
            rows += [Row(llm, None), Row(llm, GUIDE)]
        of_model = rows[0].llm.engine.parts.model.config
        work = multiply_adds(of_model, tokens)
        stack.enter_context(torch.inference_mode())
        products = Products(of_model)
        for turn in range(repeat + WARM_UP):
            rate = products.rates()
            time.sleep(PAUSE_S)
            times = [row.answer([rng.randrange(of_model.vocab_size) for _ in range(tokens)]) for row in rows]
            if turn >= WARM_UP:
                rates.append(rate)
                for row, seconds in zip(rows, times, strict=True):
                    row.seconds.append(seconds)
                    row.ratios.append(seconds * max(rate.values()) / work)
    fastest = median(max(rate.values()) for rate in rates)
    table = [
        {
            "tokens": tokens,
            "speculation": name,
            "guided": row.guide is not None,
            "first_token_ms": round(median(row.seconds) * 1e3, 3),
            "arithmetic_ms": round(work / fastest * 1e3, 3),
            "ratio": round(median(row.ratios), 3),
        }
        for name, row in zip((name for name in names for _ in range(2)), rows, strict=True)
    ]
    summary = {
        "model": model,
        "gflop": round(2 * work / 1e9, 3),
        "product": "{} rows, {} inputs, {} outputs".format(*products.shape),
        **{f"{kind}_gflop_per_s": round(2 * median(rate[kind] for rate in rates) / 1e9) for kind in rates[0]},
        "repeat": repeat,
        "threads": threads,
    }
    return Report("first_token", table, summary)


def main(
    model: Annotated[str, typer.Option(help="A model's name or directory.")] = "weft-tiny",
    tokens: Annotated[int, typer.Option(min=1, help="Length of the prompt.")] = 98,
    speculation: Annotated[str, typer.Option(help="Drafters, as in `weft bench serve`.")] = "none,eagle3",
    num_drafts: Annotated[int, typer.Option("--num-draft-tokens", "-k", min=1)] = 3,
    repeat: Annotated[int, typer.Option(min=1, help="Number of prompts of each row.")] = 101,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    out: OutOption = None,
) -> None:
    """Compare the time to the first token with the arithmetic of the prompt's forward."""
    finish(measured(out, lambda: run(model, speculation, num_drafts, tokens, repeat, threads)), out)


if __name__ == "__main__":
    script(main)
