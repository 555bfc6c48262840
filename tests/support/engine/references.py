"""A checkpoint, with the objects that the reference needs to decode it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xgrammar as xgr
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.engine.oracle import Reference, greedy
from weft.grammar.guide import Guide

MAX_TOKENS = 40


@dataclass
class Checkpoint:
    """A model directory, with its transformers model, tokenizer and xgrammar compiler for the reference."""

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
        """Decode greedily without weft."""
        compiled = compile_reference(self.compiler, guide) if guide is not None else None
        return greedy(self.model, self.tokenizer.encode(prompt), compiled, self.end_ids, max_tokens)


def compile_reference(compiler: xgr.GrammarCompiler, guide: tuple[str, Any]) -> xgr.CompiledGrammar:
    """Compile the grammar of a guide with the library's Python API."""
    return compiler.compile_grammar(make_guide(guide).grammar())


def make_guide(guide: tuple[str, Any]) -> Guide:
    """Make the `Guide` of an entry of GUIDES."""
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


Cached = Callable[[int, bool], Reference]
"""Returns reference i for prompt i, with guide i or without a guide."""
