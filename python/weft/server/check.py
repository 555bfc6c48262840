"""Finds the faults of a server's models, and estimates their memory, without loading weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from weft.client.builder import ModelSource
from weft.client.generation_config import sampling_defaults
from weft.client.model_facts import ModelFacts
from weft.config import ResolvedConfig
from weft.engine.build import check_beam_width, state_sizes
from weft.engine.kv.size import DeviceMemory, pages_in_memory
from weft.errors import InputError, WeftError
from weft.grammar.compile.compiler import GuideCompiler
from weft.models.architectures import read_config
from weft.models.config import cache_dtype
from weft.models.states import state_bytes
from weft.models.stored import count_parameters
from weft.runtime import get as get_runtime
from weft.server import models
from weft.server.faults import FaultList
from weft.server.models import ServedModelConfig, in_bytes, in_millions
from weft.spec.load import find_weights


@dataclass(frozen=True)
class CheckedModel:
    """A model without faults, and the number of its drafter's parameters."""

    config: ServedModelConfig
    facts: ModelFacts
    engine: ResolvedConfig
    num_drafter_parameters: int
    has_drafter_weights: bool

    @property
    def weight_bytes(self) -> int:
        """The bytes of the weights, also the drafter's, which are estimated."""
        headers = self.facts.headers
        sizes: list[float] = [dtype.itemsize for dtype in headers.matrix_dtypes]
        sizes += [each.block.bytes / each.block.inputs for each in headers.matrix_formats]
        return self.facts.weight_bytes + int(self.num_drafter_parameters * max(sizes))

    @property
    def page_bytes(self) -> int:
        """Bytes of a page of keys and values, without the drafter's."""
        return self.facts.token_bytes(self.engine.kv_cache_dtype) * self.engine.page_size

    @property
    def kv_bytes(self) -> int:
        """Bytes of all pages, without the drafter's."""
        return self.engine.num_pages * self.page_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of the states of all slots and snapshots; 0 for a model without recurrent layers."""
        sizes = state_sizes(self.engine, self.config.speculation)
        return state_bytes(self.facts.config.layer_memories, *sizes)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights, pages and states."""
        return self.weight_bytes + self.kv_bytes + self.state_bytes

    def __str__(self) -> str:
        config, facts, engine = self.config, self.facts, self.engine
        # A drafter with weights has keys and values of its own.
        exception = ", without the drafter's" if self.has_drafter_weights else ""
        guides = f"; guides {', '.join(config.handles)}" if config.handles else ""
        states = f", {in_bytes(self.state_bytes)} of states" if self.state_bytes else ""
        return (
            f"{models.name_of(config)}: {facts.path}\n"
            f"    {facts.config.architecture}, {in_millions(facts.headers.num_parameters)} parameters in "
            f"{facts.weight_dtypes} on {facts.device}; drafter {config.speculation.name}{guides}\n"
            f"    {engine.max_batch} requests of up to {engine.max_seq_len:,} tokens; "
            f"{in_bytes(self.weight_bytes)} of weights, up to {in_bytes(self.kv_bytes)} of pages{exception}{states}"
        )


def check_models(configs: Sequence[ServedModelConfig], faults: FaultList) -> list[CheckedModel]:
    """Check what takes a moment: names, settings, and whether the files of models and drafters are there. Adds the
    faults to `faults`. Returns the models without any."""
    checked = []
    for name, count in Counter(map(models.name_of, configs)).items():
        with faults.noted():
            if count > 1:
                raise InputError(f"two models are called {name!r}; give names")
    for config in configs:
        with faults.noted(f"{models.placed(config)}: "):
            checked.append(_check(config))
    return checked


def check_contents(checked: Iterable[CheckedModel], faults: FaultList) -> list[CheckedModel]:
    """Check what takes seconds: tokenizers, guides, and whether the pages fit the free memory. Adds the faults to
    `faults`. Returns the models without any, with the number of pages that they will have."""
    found: list[CheckedModel] = []
    for model in checked:
        with faults.noted(f"{models.placed(model.config)}: "):
            taken = sum(other.num_bytes for other in found)
            found.append(_check_contents(model, taken))
    return found


def _check(config: ServedModelConfig) -> CheckedModel:
    faults, device, drafter_count = FaultList(), torch.device("cpu"), 0
    drafter_paths: list[Path] = []
    with faults.noted():
        models.check(config)
    with faults.noted():
        device = get_runtime(config.device).device
    try:
        path = ModelSource.of(config.path).path
        _, model = read_config(path)
    except WeftError as error:  # nothing else can be checked
        faults.add(error)
        raise faults.error from None
    facts: ModelFacts | None = None
    with faults.noted():
        facts = ModelFacts.read(path, device, config.dtype)
        model = facts.config
    with faults.noted():
        drafter_paths = list(find_weights(config.speculation, path, model))
        drafter_count = sum(count_parameters(directory) for directory in drafter_paths if directory != path)
    with faults.noted():
        sampling_defaults(path, config.generation_config)
    with faults.noted():
        drafts = config.speculation.max_draft_tokens
        engine = config.engine.resolved(model.max_position_embeddings, drafts, device.type, model.has_states)
        check_beam_width(engine.max_beam_width, config.speculation, engine)
        cache_dtype(model, device, engine.kv_cache_dtype)
    faults.check()
    assert facts is not None
    return CheckedModel(config, facts, engine, drafter_count, bool(drafter_paths))


def _check_contents(checked: CheckedModel, taken_bytes: int) -> CheckedModel:
    """Check one model. Others will take `taken_bytes` of the memory that is free now."""
    faults, config, engine = FaultList(), checked.config, checked.engine
    with faults.noted():
        source = ModelSource.of(checked.facts.path)
        text = source.text(checked.facts.config.vocab_size, engine.max_seq_len)
        vocabulary = source.guide_vocabulary(text)
        if config.handles and vocabulary is not None:
            with GuideCompiler(
                vocabulary, backend=engine.grammar, untrusted=engine.untrusted_guides
            ) as compiler:
                compiler.wait()
                for name, guide in config.handles.items():
                    with faults.noted(f"guides.{name}: "):
                        compiler.compile(guide)
    given = config.engine.num_pages
    with faults.noted():
        if given is None or engine.is_sized_by_memory:
            free = get_runtime(config.device).free_memory() - taken_bytes - checked.weight_bytes
            memory = DeviceMemory(max(free, 0), is_shared=checked.facts.device.type == "cpu")
            drafts = config.speculation.max_draft_tokens
            num_pages = pages_in_memory(
                engine, given, checked.page_bytes, memory, drafts, checked.state_bytes
            )
            checked = replace(checked, engine=replace(engine, num_pages=num_pages))
    faults.check()
    return checked
