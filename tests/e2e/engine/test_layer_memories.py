"""Models with recurrent layers, and those with windows in some layers, give the same tokens whether prefixes are reused
or all texts are read again: chats whose turns continue earlier ones, with drafts, overlap, preemption, and little
memory for states and windowed pages."""

from __future__ import annotations

import json
import random
import shutil
from collections import abc
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from support.engine.checkpoints import TOKENIZER_FILES
from support.products import each_value
from weft import LLM, EngineConfig, SamplingParams, Speculation
from weft.client import builder
from weft.config import package_model_path

LAYERS = ["linear_attention", "full_attention"] * 2
DELTA = {f"linear_{name}": size for name, size in (("num_key_heads", 2), ("num_value_heads", 4))}
MODELS: dict[str, dict[str, Any]] = {
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "expand": 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "qwen3_5_text": {
        "layer_types": LAYERS,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        **DELTA,
    },
}
WINDOWED: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "sliding_window": 16,
        "query_pre_attn_scalar": 16,
    },
    "gpt_oss": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {"overlap": False},
    "overlap": {"overlap": True},
    "few pages": {"policy": "max_utilization", "num_pages": 36, "max_num_tokens": 64, "overlap": True},
    "few rows": {"overlap": True, "num_snapshots": 3},
    "few tokens": {"overlap": True, "max_num_tokens": 40, "prefill_chunk": 16},
    "whole pages": {"overlap": True, "partial_reuse": False},
}
Answers = list[list[list[int]]]
"""By turn and chat."""


@pytest.fixture(scope="module")
def save(tmp_path_factory: pytest.TempPathFactory) -> abc.Callable[[str], Path]:
    """Save a random model of a kind, once."""

    @cache
    def saved(kind: str) -> Path:
        path = tmp_path_factory.mktemp(kind)
        tiny = json.loads((package_model_path() / "config.json").read_text())
        sizes = {"vocab_size": tiny["vocab_size"], "hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
        heads = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
        ids = {name: tiny[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        terms = {**sizes, **heads, **ids, "max_position_embeddings": 512, "tie_word_embeddings": False}
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(kind, **{**terms, **{**MODELS, **WINDOWED}[kind]})
        )
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() > 1 and "conv" not in name:
                    parameter.normal_(0.0, 0.08)
        model.save_pretrained(path)
        for name in TOKENIZER_FILES:
            shutil.copy(package_model_path() / name, path / name)
        return path

    return saved


@pytest.fixture(scope="module")
def read_again(save: abc.Callable[[str], Path]) -> abc.Callable[[str], Answers]:
    """The answers without reuse, which read every text from its beginning."""

    @cache
    def answers(kind: str) -> Answers:
        return chat(save(kind), None, reuse=False, overlap=False)[0]

    return answers


def chat(path: Path, given: Answers | None, **engine: Any) -> tuple[Answers, LLM, int]:
    """The answers of six chats of four turns with a common beginning. Each is drafted from those `given`, of which one
    token is wrong. Also returns the closed LLM, and the number of accepted drafts."""
    rng = random.Random(7)
    system = [rng.randrange(10, 1500) for _ in range(24)]
    texts = [[*system, *(rng.randrange(10, 1500) for _ in range(rng.randrange(3, 30)))] for _ in range(6)]
    speculation = Speculation.none() if given is None else Speculation.given(num_draft_tokens=3)
    terms = {"max_batch": 4, "max_seq_len": 200, "page_size": 8, **engine}
    answers: Answers = []
    with LLM(path, device="cpu", speculation=speculation, engine=EngineConfig(**terms)) as llm:
        num_accepted = 0
        for turn in range(4):
            sampling = [
                SamplingParams(
                    max_tokens=rng.randrange(1, 24), stop_token_ids=[*range(21, 1400, 7)][: 99 * i]
                )
                for i in range(len(texts))
            ]
            drafts = {} if given is None else {"given": [wrong(answer) for answer in given[turn]]}
            outputs = llm.generate(texts, sampling=sampling, **drafts)
            assert all(output.error is None for output in outputs)
            answers.append([list(output.token_ids) for output in outputs])
            num_accepted += sum(output.stats.accepted_drafts for output in outputs)
            for text, output in zip(texts, outputs, strict=True):
                text += [*output.token_ids, *(rng.randrange(10, 1500) for _ in range(rng.randrange(1, 9)))]
                del text[150:]
            llm.client.call(llm.engine.kv.check)
    return answers, llm, num_accepted


def wrong(answer: list[int]) -> list[int]:
    middle = len(answer) // 2
    return [*answer[:middle], 11, *answer[middle + 1 :]]


@each_value
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_kept_states_change_no_token(
    save: abc.Callable[[str], Path],
    read_again: abc.Callable[[str], Answers],
    way: str,
    kind: str,
    drafts: bool,
) -> None:
    expected = read_again(kind)
    answers, llm, num_accepted = chat(save(kind), expected if drafts else None, **WAYS[way])
    assert answers == expected
    usage = llm.engine.kv.usage()
    assert usage.snapshot_hits > 0
    assert bool(num_accepted) == drafts


@pytest.mark.parametrize("num_windowed", [None, 60])
@pytest.mark.parametrize("kind", WINDOWED)
def test_windowed_pages_change_no_token(
    save: abc.Callable[[str], Path],
    read_again: abc.Callable[[str], Answers],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    num_windowed: int | None,
) -> None:
    """The reference has one kind of pages, because there would be no fewer windowed pages."""
    expected = read_again(kind)
    if num_windowed is not None:  # little more than one text needs
        monkeypatch.setattr(builder, "windowed_pages", lambda *_: num_windowed)
    answers, llm, num_accepted = chat(save(kind), expected, page_size=4, overlap=True)
    assert answers == expected and num_accepted
    usage = llm.engine.kv.usage()
    assert 0 < usage.max_windowed_pages < usage.max_pages
    assert usage.reused_pages > 100 or num_windowed is not None
