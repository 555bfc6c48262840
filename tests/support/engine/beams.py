"""Beam requests run by hand on a `BeamGroup`: slots and pages are dealt out as an engine would."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoTokenizer

from weft.config import EngineConfig, Graphs
from weft.engine.beam.request import BeamRequest
from weft.engine.beam.runner import BeamGroup
from weft.engine.device.state import DecodeParts, SlotState
from weft.engine.request import Stage
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.guide import Guide
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.guided.host_lane import HostLane
from weft.models.base import PagedKV
from weft.models.weights import load_model
from weft.runtime import get
from weft.runtime.interface import Runtime


class Beams:
    """A model and the beam group of an engine around it, with `max_batch` slots and few pages."""

    def __init__(
        self,
        path: Path,
        *,
        max_batch: int = 8,
        max_seq_len: int = 512,
        page_size: int = 8,
        prefill_chunk: int = 48,
        graphs: Graphs = "split",
        runtime: Runtime | None = None,
    ) -> None:
        config = EngineConfig(
            max_batch=max_batch,
            max_seq_len=max_seq_len,
            page_size=page_size,
            prefill_chunk=prefill_chunk,
            graphs=graphs,
        )
        self.runtime = runtime if runtime is not None else get("cpu")
        model = load_model(path, self.runtime.device, "float32")
        self.config = config = config.resolved(model.config.max_position_embeddings, 0)
        assert config.num_pages is not None
        self.tokenizer = tokenizer = AutoTokenizer.from_pretrained(path)
        self.vocabulary = Vocabulary.from_huggingface(
            tokenizer, model_path=path, vocab_size=model.config.vocab_size
        )
        self.compiler = GuideCompiler(self.vocabulary)
        self.stream = self.runtime.stream()
        lane = HostLane(
            self.runtime, self.stream, max_batch, 1, model.config.vocab_size, self.vocabulary.end_ids
        )
        kv = PagedKV.for_model(model, config.num_pages, page_size)
        state = SlotState(lane, config.pages_for(max_seq_len, 0), max_seq_len)
        self.parts = DecodeParts(model, kv, None, state, has_proposals=False, max_drafts=0)
        self.group = BeamGroup(self.runtime, self.stream, self.parts, self.vocabulary.end_ids, config)
        self.runtime.publish()
        self.free_slots = list(range(max_batch))
        self.free_pages = list(range(1, config.num_pages))
        self.held: dict[int, tuple[list[int], list[int]]] = {}
        self.last_pages: list[int] = []

    def start(self, request: BeamRequest, guide: Guide | None = None) -> None:
        """Admit a request."""
        if guide is not None:
            request.compiled = self.compiler.submit(guide).result()
        width, count = request.beam.width, self.group.pages_needed(request)
        slots = [self.free_slots.pop() for _ in range(width)]
        pages = [self.free_pages.pop() for _ in range(count)]
        self.held[request.id] = slots, pages
        request.move(Stage.CONTEXT)
        self.group.start(request, slots, pages)

    def end(self, request: BeamRequest) -> None:
        """Take back what a request holds."""
        self.group.end(request)
        slots, pages = self.held.pop(request.id)
        self.free_slots += slots
        self.free_pages += pages
        self.last_pages = pages

    def step(self) -> list[BeamRequest]:
        """One turn; the requests that ended in it."""
        ended = []
        with torch.inference_mode():
            endings = self.group.step()
        for ending in endings:
            self.end(ending.request)
            ending.request.finish(ending.reason, ending.error)  # type: ignore[arg-type]  # as raised
            ended.append(ending.request)
        return ended

    def run(self, requests: Sequence[BeamRequest], guides: Sequence[Guide | None] = ()) -> None:
        """Run requests together to their end; raises what ended one."""
        for i, request in enumerate(requests):
            self.start(request, guides[i] if guides else None)
        while self.group.has_work:
            for request in self.step():
                if request.output.error is not None:
                    raise request.output.error

    def assert_nothing_held(self) -> None:
        """Every slot and page is back, and none is there twice."""
        assert not self.group.has_work and not self.held
        assert sorted(self.free_slots) == list(range(self.config.max_batch))
        assert self.config.num_pages is not None
        assert sorted(self.free_pages) == list(range(1, self.config.num_pages))
