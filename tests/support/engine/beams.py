"""Runs beam requests on an engine with few pages, which the test steps itself."""

from __future__ import annotations

from collections import abc
from pathlib import Path
from typing import Any

import torch

from support.engine.requests import engine_request
from weft.config import EngineConfig, Graphs, Speculation
from weft.core import SamplingParams
from weft.core.beam_params import BeamParams
from weft.core.logits_processors import LogitsProcessor
from weft.core.request import NOTHING, Gather
from weft.engine.build import build_engine
from weft.engine.sequence import RequestGuide, Sequence
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.guide import Guide
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.models.base import PagedKV
from weft.models.loading import load_model
from weft.runtime import get
from weft.runtime.interface import Runtime
from weft.spec.load import Drafting
from weft.tokenizer.files import load_tokenizer


class Beams:
    """A model and its engine, with `max_batch` slots and few pages."""

    def __init__(
        self,
        path: Path,
        *,
        max_batch: int = 8,
        max_seq_len: int = 512,
        page_size: int = 8,
        prefill_chunk: int = 48,
        graphs: Graphs = "one",
        runtime: Runtime | None = None,
        reuse: bool = False,
        gather_generation_logits: bool = False,
        additional_outputs: tuple[tuple[str, bool], ...] = (),
    ) -> None:
        config = EngineConfig(
            max_batch=max_batch,
            max_seq_len=max_seq_len,
            page_size=page_size,
            prefill_chunk=prefill_chunk,
            graphs=graphs,
            max_beam_width=max_batch,
            reuse=reuse,
            gather_generation_logits=gather_generation_logits,
            additional_outputs=additional_outputs,
        )
        self.runtime = runtime if runtime is not None else get("cpu")
        model = load_model(path, self.runtime.device, "float32")
        self.config = config = config.resolved(model.config.max_position_embeddings, 0)
        assert config.num_pages is not None
        self.tokenizer = tokenizer = load_tokenizer(path)
        self.vocabulary = Vocabulary.from_huggingface(
            tokenizer, model_path=path, vocab_size=model.config.vocab_size
        )
        self.compiler = GuideCompiler(self.vocabulary)
        kv = PagedKV.for_model(model, config.num_pages, page_size)
        drafting = Drafting(Speculation.none())
        self.engine = build_engine(self.runtime, model, kv, drafting, list(self.vocabulary.end_ids), config)

    def start(self, request: Sequence, guide: Guide | None = None) -> None:
        """Submit a request."""
        if guide is not None:
            compiled = self.compiler.submit(guide).result()
            request.guide = RequestGuide.of(compiled)
        self.engine.submit(request)

    def step(self) -> None:
        """Run one engine step."""
        with torch.inference_mode():
            self.engine.step()

    def run(self, requests: abc.Sequence[Sequence], guides: abc.Sequence[Guide | None] = ()) -> None:
        """Run requests together until all have finished. Raises the error of a request that failed."""
        for i, request in enumerate(requests):
            self.start(request, guides[i] if guides else None)
        self.finish()
        for request in requests:
            if request.output.error is not None:
                raise request.output.error

    def finish(self) -> None:
        """Step until the engine has no work."""
        while self.engine.has_work:
            self.step()

    def assert_nothing_held(self) -> None:
        """Finish all work, and check that every slot and page is free again."""
        self.finish()
        assert not self.engine.running and not self.engine.waiting
        assert sorted(self.engine.scheduler.capacity.free_slots) == list(range(self.config.max_batch))
        usage = self.engine.kv.usage()
        assert usage.free_pages == usage.max_pages and not usage.used_pages


def beam_request(
    prompt: list[int],
    params: BeamParams,
    max_tokens: int = 16,
    gather: Gather = NOTHING,
    processor: LogitsProcessor | None = None,
    **sampling: Any,
) -> Sequence:
    """Make a request for a beam search. `sampling` are further `SamplingParams`."""
    wanted = SamplingParams(max_tokens=max_tokens, **sampling)
    return engine_request(prompt, wanted, 0, beam=params, gather=gather, processor=processor)


def beam_tokens(requests: abc.Sequence[Sequence]) -> list[list[list[int]]]:
    """The tokens of every answer of every request, best first."""
    return [[h.token_ids for h in each.output.hypotheses] for each in requests]
