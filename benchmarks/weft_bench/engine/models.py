"""Engines for timing that share a single loaded model, with or without an EAGLE3 head.

The model comes from a directory, or is random in a given shape. A random model has a synthetic vocabulary and a
random head.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.config import EngineConfig, Graphs, HostTasks, Speculation, package_model_path
from weft.core import SamplingParams
from weft.core.request import Request
from weft.engine.build import build_engine
from weft.engine.engine import Engine
from weft.engine.sequence import RequestGuide, Sequence
from weft.errors import InputError
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.guide import Guide
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.models.base import Model, PagedKV
from weft.models.config import ModelConfig, cache_dtype
from weft.models.eagle3_config import Eagle3Config
from weft.models.eagle3_head import Eagle3Head
from weft.models.llama import Llama
from weft.models.loading import load_model
from weft.models.random_weights import RandomWeights
from weft.runtime import get as get_runtime
from weft.runtime.interface import Runtime
from weft.spec.eagle3 import Eagle3
from weft.spec.load import Drafting
from weft.tokenizer.files import load_tokenizer
from weft_bench.engine.simulated import simulate_acceptance
from weft_bench.vocabulary import synthetic_vocabulary


@dataclass(frozen=True)
class Shape:
    """The shape of a random Llama. `intermediate` defaults to 3.5 times `hidden`, and four query heads share a KV
    head. Its EAGLE3 head drafts from `draft_vocab` tokens, by default from all."""

    layers: int
    hidden: int
    vocab: int = 32768
    intermediate: int | None = None
    draft_vocab: int | None = None

    def config(self, dtype: torch.dtype, vocab_size: int) -> ModelConfig:
        """Return the configuration of a model in this shape."""
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


SHAPES = {
    "small": Shape(layers=4, hidden=256, vocab=4096, draft_vocab=1024),
    "llama-8b-eagle3": Shape(
        layers=32, hidden=4096, vocab=128256, intermediate=14336, draft_vocab=32000
    ),  # Llama 3.1 8B and its published head
}
"""Shapes by name."""


def shape_of(name: str) -> Shape:
    """Return the shape with this name. Raises `InputError` if there is none."""
    if name not in SHAPES:
        raise InputError(f"shape is {name!r}; it must be one of {', '.join(SHAPES)}")
    return SHAPES[name]


@dataclass(frozen=True)
class Bench:
    """A loaded model with its EAGLE3 head and guide compiler. Its engines share the weights."""

    name: str
    runtime: Runtime
    model: Model
    head: Eagle3Head
    vocabulary: Vocabulary
    compiler: GuideCompiler

    @classmethod
    def load(cls, device: str, path: Path | None = None) -> Bench:
        """Load a model directory with its `eagle3/`. The default is weft-tiny."""
        runtime, path = get_runtime(device), path or package_model_path()
        model = load_model(path, runtime.device)
        vocabulary = Vocabulary.from_huggingface(
            load_tokenizer(path), model_path=path, vocab_size=model.config.vocab_size
        )
        head = Eagle3Head.load(path / "eagle3", model)
        return cls(path.name, runtime, model, head, vocabulary, GuideCompiler(vocabulary))

    @classmethod
    def random(cls, device: str, shape: Shape) -> Bench:
        """Make random weights, in float32 on a CPU and in bfloat16 on a GPU."""
        runtime = get_runtime(device)
        dtype = torch.float32 if runtime.device.type == "cpu" else torch.bfloat16
        vocabulary = synthetic_vocabulary(shape.vocab)
        config = shape.config(dtype, vocabulary.vocab_size)
        aux_layers = (min(2, shape.layers), shape.layers // 2, max(0, shape.layers - 3))
        draft_vocab = shape.draft_vocab or vocabulary.vocab_size
        weights = WeightsOnDevice(config, 1, runtime.device)
        head_weights: Any = HeadWeights(config, 2, runtime.device, draft_vocab)
        with torch.inference_mode():
            model = Llama(config, weights)
            head = Eagle3Head(
                Eagle3Config(config, aux_layers, shape.hidden, draft_vocab), head_weights, model
            )
        runtime.publish()
        name = f"random {shape.layers}x{shape.hidden}"
        return cls(name, runtime, model, head, vocabulary, GuideCompiler(vocabulary))

    def engine(
        self,
        batch: int,
        max_seq_len: int,
        num_drafts: int,
        simulate: float | None,
        graphs: Graphs = "one",
        host_tasks: HostTasks = "callback",
    ) -> Engine:
        """Build an engine with `num_drafts` EAGLE3 drafts per iteration (0: none). Drafts of guided requests are
        masked."""
        config = EngineConfig(
            max_batch=batch,
            max_seq_len=max_seq_len,
            graphs=graphs,
            host_tasks=host_tasks,
            reuse=simulate is None,
        )
        limit, device = self.model.config.max_position_embeddings, self.runtime.device.type
        config = config.resolved(limit, num_drafts, device)
        assert config.num_pages is not None
        drafting = Drafting(Speculation.none())
        kv_dtype = cache_dtype(self.model.config, self.runtime.device, config.kv_cache_dtype)
        if num_drafts:
            drafter = Eagle3(self.head, self.head.allocate_kv(config.num_pages, config.page_size, kv_dtype))
            drafting = Drafting(Speculation.eagle3(num_draft_tokens=num_drafts, guide_drafts=True), drafter)
        kv = PagedKV.for_model(self.model, config.num_pages, config.page_size, dtype=kv_dtype)
        # If there is an end token that models never generate, use it, so that timed requests do not end.
        silent = sorted(self.vocabulary.special_ids - set(self.vocabulary.end_ids))
        ends = silent[-1:] or list(self.vocabulary.end_ids)
        engine = build_engine(self.runtime, self.model, kv, drafting, ends, config)
        if simulate is not None:
            simulate_acceptance(engine, simulate)
        return engine

    def request(self, seed: int, max_tokens: int, guide: Guide | None, prompt_tokens: int = 8) -> Sequence:
        """Make a request with a synthetic prompt. Each guide is compiled once."""
        size = self.model.config.vocab_size
        prompt = [3 + (seed * 7919 + i * 104729) % (size - 4) for i in range(prompt_tokens)]
        own = RequestGuide(self.compiler.submit(guide)) if guide is not None else None
        return Sequence(Request(prompt, SamplingParams(max_tokens=max_tokens)), seed, own)

    def close(self) -> None:
        """Release the compiled guides. All engines must be closed before."""
        self.compiler.close()


class WeightsOnDevice(RandomWeights):
    """Random weights that are generated on their device, within seconds even for billions. The values depend on the
    device."""

    def __init__(self, config: ModelConfig, seed: int, device: torch.device) -> None:
        super().__init__(config, seed, device)
        self._generator = torch.Generator(device).manual_seed(seed)

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a random tensor, as `RandomWeights.take` does."""
        if name.endswith("norm.weight"):
            return super().take(name, *shape)
        made = torch.empty(shape, dtype=self.dtype, device=self.device)
        return made.normal_(0, float(shape[-1]) ** -0.5, generator=self._generator)


class HeadWeights(WeightsOnDevice):
    """Random weights of an EAGLE3 head with the target's embedding. Its draft vocabulary is the target's first 512
    tokens, which include every byte, and an even selection of the others."""

    def __init__(self, config: ModelConfig, seed: int, device: torch.device, draft_vocab: int) -> None:
        super().__init__(config, seed, device)
        self._vocab = config.vocab_size
        self._draft_vocab = draft_vocab

    def __contains__(self, name: str) -> bool:
        return name == "lm_head.weight" or (name == "d2t" and self._draft_vocab < self._vocab)

    def drop(self, name: str) -> None:
        """Do nothing, because there is no file."""

    def take_raw(self, name: str, *shape: int) -> Tensor:
        """Return `d2t`, the offsets from draft to target ids."""
        drafts = torch.arange(*shape)
        first = min(512, self._draft_vocab)
        rest = self._draft_vocab - first
        spread = first + torch.arange(rest) * (self._vocab - first) // max(rest, 1)
        return torch.cat((drafts[:first], spread)) - drafts
