"""`first_token.py`: the arithmetic of a forward, counted otherwise, and a small run. No timing is judged."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from first_token import Products, largest_product, multiply_adds, run
from weft.errors import InputError
from weft.models.config import ModelConfig
from weft_bench.engine.models import Shape

CONFIG: ModelConfig = Shape(layers=3, hidden=64, vocab=1000).config(torch.float32, 1000)
TOKENS = 9


def test_arithmetic_is_that_of_the_products_of_a_plain_forward() -> None:
    config, heads = CONFIG, CONFIG.num_heads * CONFIG.head_dim
    kv = config.num_kv_heads * config.head_dim
    with FlopCounterMode(display=False) as counter:
        for _ in range(config.num_layers):
            x = torch.zeros(TOKENS, config.hidden_size)
            for outputs in (heads, kv, kv, config.intermediate_size, config.intermediate_size):
                x @ torch.zeros(config.hidden_size, outputs)
            torch.zeros(TOKENS, heads) @ torch.zeros(heads, config.hidden_size)
            torch.zeros(TOKENS, config.intermediate_size) @ torch.zeros(
                config.intermediate_size, config.hidden_size
            )
            for length in range(1, TOKENS + 1):  # a token attends to those before it and to itself
                query = torch.zeros(config.num_heads, 1, config.head_dim)
                keys = torch.zeros(config.num_heads, length, config.head_dim)
                torch.bmm(torch.bmm(query, keys.transpose(1, 2)), keys)
        torch.zeros(1, config.hidden_size) @ torch.zeros(config.hidden_size, config.vocab_size)
    assert 2 * multiply_adds(config, TOKENS) == counter.get_total_flops()


def test_the_largest_product_is_of_gates_and_ups() -> None:
    assert largest_product(CONFIG) == (2 * CONFIG.intermediate_size, CONFIG.hidden_size)
    assert set(Products(CONFIG).rates()) == {"torch", "weft"}


def test_small_run() -> None:
    report = run("weft-tiny", "none, eagle3", 2, tokens=20, repeat=2, threads=torch.get_num_threads())
    assert [(row["speculation"], row["guided"]) for row in report.rows] == [
        ("none", False),
        ("none", True),
        ("eagle3", False),
        ("eagle3", True),
    ]
    for row in report.rows:
        assert row["first_token_ms"] > row["arithmetic_ms"] > 0 and row["ratio"] > 1
    assert report.summary["weft_gflop_per_s"] > 0
    with pytest.raises(InputError, match="forced"):
        run("weft-tiny", "guess", 2, tokens=20, repeat=2, threads=1)
