"""Models, prompts and references that the end-to-end tests share."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import xgrammar as xgr
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.engine.checkpoints import MODEL_TYPES, save_checkpoint, save_eagle3
from support.engine.oracle import Reference, greedy
from support.grammar.guides import GUIDES
from weft.config import package_model_path
from weft.grammar.guide import Guide
from weft.runtime import cpu
from weft.tiny.records import example

MAX_TOKENS = 40


@dataclass
class Checkpoint:
    """A model directory with what the reference decodes it with."""

    path: Path
    model: Any
    tokenizer: Any
    compiler: xgr.GrammarCompiler

    @property
    def end_ids(self) -> set[int]:
        return {self.tokenizer.eos_token_id}

    def reference(
        self, prompt: str, guide: tuple[str, Any] | None, max_tokens: int = MAX_TOKENS
    ) -> Reference:
        """What plain greedy decoding gives."""
        compiled = compile_reference(self.compiler, guide) if guide is not None else None
        return greedy(self.model, self.tokenizer.encode(prompt), compiled, self.end_ids, max_tokens)


def compile_reference(compiler: xgr.GrammarCompiler, guide: tuple[str, Any]) -> xgr.CompiledGrammar:
    """The grammar that weft compiles for a guide, made again with the library's Python API."""
    return compiler.compile_grammar(make_guide(guide).grammar())


def make_guide(guide: tuple[str, Any]) -> Guide:
    """A `Guide` of an entry of GUIDES."""
    kind, argument = guide
    made: Guide = getattr(Guide, kind)() if argument is None else getattr(Guide, kind)(argument)
    return made


def load(path: Path) -> Checkpoint:
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    backend = tokenizer.backend_tokenizer
    specials = {i for i, t in backend.get_added_tokens_decoder().items() if t.special}
    info = xgr.TokenizerInfo.from_huggingface(tokenizer, vocab_size=model.config.vocab_size)
    tokens = [b"" if i in specials else t for i, t in enumerate(info.decoded_vocab)]
    info = xgr.TokenizerInfo(
        tokens,
        vocab_type=xgr.VocabType.RAW,
        vocab_size=model.config.vocab_size,
        stop_token_ids=[tokenizer.eos_token_id],
    )
    return Checkpoint(path, model, tokenizer, xgr.GrammarCompiler(info))


@pytest.fixture(scope="session")
def tiny() -> Checkpoint:
    return load(package_model_path())


@pytest.fixture(scope="session", params=sorted(MODEL_TYPES))
def random_checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = tmp_path_factory.mktemp("checkpoint") / request.param
    model = save_checkpoint(path, request.param)
    save_eagle3(
        path / "eagle3", model.config.vocab_size, model.config.hidden_size, model.config.num_hidden_layers
    )
    return load(path)


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    rng = random.Random(20)
    return [example(rng, "heldout").prompt for _ in range(len(GUIDES))]


Cached = Callable[[int], tuple[Reference, Reference]]


@pytest.fixture(scope="session")
def tiny_references(tiny: Checkpoint, prompts: list[str]) -> Cached:
    """Reference i: prompt i under guide i, and without a guide. Computed once."""
    cache: dict[int, tuple[Reference, Reference]] = {}

    def get(i: int) -> tuple[Reference, Reference]:
        if i not in cache:
            cache[i] = tiny.reference(prompts[i], GUIDES[i]), tiny.reference(prompts[i], None)
        return cache[i]

    return get


@pytest.fixture
def schedules() -> Iterator[Callable[..., None]]:
    """Sets the CPU runtime's schedule; the ordinary one is back behind the test."""
    yield cpu.set_schedule
    cpu.synchronize()
    cpu.set_schedule("inline")
