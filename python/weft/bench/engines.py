"""Engines for timing: around one loaded model, whatever it is, with or without an EAGLE3 head.

The model is a directory's, or random in a given shape: then the vocabulary is made up and the head is random, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from weft.bench.grammar import synthetic_vocabulary
from weft.config import EngineConfig, Speculation, package_model_path
from weft.core import SamplingParams
from weft.engine.lifecycle import Request
from weft.engine.loop import Engine
from weft.grammar.compile import GuideCompiler
from weft.grammar.guide import Guide
from weft.grammar.tokenizer import Vocabulary
from weft.models.base import Model, PagedKV
from weft.models.config import ModelConfig
from weft.models.eagle3_head import Eagle3Head
from weft.models.weights import RandomWeights, load_model, random_model
from weft.runtime import get as get_runtime
from weft.runtime.interface import Runtime
from weft.spec.eagle3 import Eagle3
from weft.spec.load import Drafting
from weft.text import load_tokenizer


@dataclass(frozen=True)
class Shape:
    """A random Llama: `intermediate` defaults to 3.5 times `hidden`; four query heads share a head of the KV."""

    layers: int
    hidden: int
    vocab: int = 32768
    intermediate: int | None = None

    def config(self, dtype: torch.dtype, vocab_size: int) -> ModelConfig:
        """What a config.json would say."""
        head_dim = 128 if self.hidden >= 2048 else 64
        heads = max(1, self.hidden // head_dim)
        return ModelConfig(
            architecture="LlamaForCausalLM",
            vocab_size=vocab_size,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate or self.hidden * 7 // 2,
            num_layers=self.layers,
            num_heads=heads,
            num_kv_heads=max(1, heads // 4),
            head_dim=head_dim,
            max_position_embeddings=4096,
            dtype=dtype,
        )


@dataclass(frozen=True)
class Bench:
    """A loaded model, its EAGLE3 head, and what compiles its guides. Engines made from it share the weights."""

    name: str
    runtime: Runtime
    model: Model
    head: Eagle3Head
    vocabulary: Vocabulary
    compiler: GuideCompiler

    @classmethod
    def load(cls, device: str, path: Path | None = None) -> Bench:
        """A model directory with its `eagle3/`; weft-tiny by default."""
        runtime, path = get_runtime(device), path or package_model_path()
        model = load_model(path, runtime.device)
        vocabulary = Vocabulary.from_huggingface(
            load_tokenizer(path), model_path=path, vocab_size=model.config.vocab_size
        )
        head = Eagle3Head.load(path / "eagle3", model)
        return cls(path.name, runtime, model, head, vocabulary, GuideCompiler(vocabulary))

    @classmethod
    def random(cls, device: str, shape: Shape) -> Bench:
        """Random weights: float32 on the CPU, bfloat16 on a GPU."""
        runtime = get_runtime(device)
        dtype = torch.float32 if runtime.device.type == "cpu" else torch.bfloat16
        vocabulary = synthetic_vocabulary(shape.vocab)
        config = shape.config(dtype, vocabulary.vocab_size)
        model = random_model(config, 0, runtime.device)
        aux_layers = (min(2, shape.layers), shape.layers // 2, max(0, shape.layers - 3))
        weights: Any = RandomHead(config, 1, runtime.device)
        with torch.inference_mode():
            head = Eagle3Head(config, aux_layers, vocabulary.vocab_size, weights, model)
        name = f"random {shape.layers}x{shape.hidden}"
        return cls(name, runtime, model, head, vocabulary, GuideCompiler(vocabulary))

    def engine(self, batch: int, max_seq_len: int, num_drafts: int, simulate: float | None) -> Engine:
        """An engine with `num_drafts` EAGLE3 drafts an iteration, guided where the request is; 0 for none.

        Texts end at a special token that models don't say, if there is one, so that what is timed goes on.
        """
        config = EngineConfig(max_batch=batch, max_seq_len=max_seq_len, simulate_acceptance=simulate)
        config = config.resolved(self.model.config.max_position_embeddings, num_drafts)
        assert config.num_pages is not None
        drafting = Drafting(Speculation.none())
        if num_drafts:
            drafter = Eagle3(self.head, self.head.allocate_kv(config.num_pages, config.page_size))
            drafting = Drafting(Speculation.eagle3(num_draft_tokens=num_drafts, guide_drafts=True), drafter)
        kv = PagedKV.for_model(self.model, config.num_pages, config.page_size)
        silent = sorted(self.vocabulary.special_ids - set(self.vocabulary.end_ids))
        ends = silent[-1:] or list(self.vocabulary.end_ids)
        return Engine(self.runtime, self.model, kv, drafting, ends, config)

    def request(self, seed: int, max_tokens: int, guide: Guide | None) -> Request:
        """A request with a short made-up prompt; its guide is compiled once for all."""
        size = self.model.config.vocab_size
        prompt = [3 + (seed * 7919 + i * 104729) % (size - 4) for i in range(8)]
        compiled = self.compiler.submit(guide) if guide is not None else None
        return Request(prompt, SamplingParams(max_tokens=max_tokens), seed, guide=compiled)

    def close(self) -> None:
        """Let go of compiled guides. Engines are closed before."""
        self.compiler.close()


class RandomHead(RandomWeights):
    """Random weights of an EAGLE3 head, whose vocabulary and embedding are the target's."""

    def __contains__(self, name: str) -> bool:
        return False

    def drop(self, name: str) -> None:
        """There is none."""
