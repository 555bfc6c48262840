"""Greedy answers from GGUF files in each type, against transformers in float32 with the numbers that the package gguf
reads: `benchmarks/reference_tokens.py`, small."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

import reference_tokens
from support.families import VOCAB_SIZE, save, small_settings
from support.gguf_files import SCALES, write
from weft import package_model_path
from weft.models.gguf.names import QUANTIZED
from weft.models.gguf.writing import TYPES, directory_to_gguf
from weft.tiny.records import example

SIZES = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 2}
"""The rows of a random Llama are whole blocks of all types."""
RANDOM = sorted({*QUANTIZED} & {*SCALES})
"""The types that weft reads and the package gguf does not write."""
QUICK = ("Q4_0", "Q8_0", "Q4_K", "MXFP4")
TIE = 1e-4
"""Logits of the reference are equal but for rounding in float32 if they differ by less than this part of the spread.
Their measured error is at most a tenth of it."""


def kinds(names: tuple[str, ...] | list[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def random_llama(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Any]:
    return lru_cache(
        lambda: save("llama", {**small_settings("llama"), **SIZES}, tmp_path_factory.mktemp("x"))
    )


def check(exact: dict[str, Any], default: dict[str, Any]) -> None:
    """Check the rows of the report: with float32 the tokens are the reference's until a tie, and by default the logits
    are as near as the rounding of rows allows."""
    assert exact["answers"] == default["answers"] == 64
    assert exact["logit_error"] < TIE / 5
    assert exact["largest_gap"] < TIE
    assert default["logit_error"] < 1.5 * default["rounded_error"]


@pytest.mark.parametrize("kind", kinds(TYPES))
def test_tokens_of_weft_tiny_are_the_references(kind: str, tmp_path: Path) -> None:
    file = directory_to_gguf(package_model_path(), tmp_path / "model.gguf", kind)
    network, generator = reference_tokens.reference(file), random.Random(1)
    prompts: list[str | list[int]] = [example(generator, "heldout").prompt for _ in range(64)]
    exact, default = (
        reference_tokens.row(file, network, prompts, 48, settings) for settings in reference_tokens.SETTINGS
    )
    check(exact, default)
    assert default["gap_in_errors"] < 4
    assert default["equal_answers"] > 56


@pytest.mark.parametrize("kind", kinds(RANDOM))
def test_tokens_of_random_blocks_are_the_references(
    kind: str, random_llama: Callable[[], Any], tmp_path: Path
) -> None:
    """At some positions a random network makes much of a small error, so that the root mean square is no bound."""
    file = write(random_llama(), tmp_path / "model.gguf", kind)
    network, generator = reference_tokens.reference(file), random.Random(1)
    prompts: list[str | list[int]] = [
        [generator.randrange(3, VOCAB_SIZE) for _ in range(generator.randrange(4, 20))] for _ in range(64)
    ]
    check(
        *(
            reference_tokens.row(file, network, prompts, 24, settings)
            for settings in reference_tokens.SETTINGS
        )
    )
