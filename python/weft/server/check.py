"""Finds the faults of a server's models, and estimates their memory, without loading weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from weft.client.builder import ModelSource
from weft.client.generation_config import sampling_defaults
from weft.config import ResolvedConfig
from weft.engine.build import check_beam_width
from weft.engine.kv.size import DeviceMemory, pages_in_memory
from weft.errors import InputError, WeftError
from weft.grammar.compile.compiler import GuideCompiler
from weft.models.config import ModelConfig
from weft.models.weights import count_parameters, read_config, with_dtype
from weft.runtime import get as get_runtime
from weft.server import models
from weft.server.faults import FaultList
from weft.server.models import ServedModelConfig, in_bytes, in_millions
from weft.spec.load import find_weights


@dataclass(frozen=True)
class CheckedModel:
    """A model without faults, and the numbers of its parameters and of its drafter's."""

    config: ServedModelConfig
    path: Path
    device: torch.device
    engine: ResolvedConfig
    model: ModelConfig
    num_parameters: int
    num_drafter_parameters: int
    has_drafter_weights: bool

    @property
    def weight_bytes(self) -> int:
        """The estimated bytes of the weights, also the drafter's."""
        count = self.num_parameters + self.num_drafter_parameters
        return count * (self.model.weight_dtype or self.model.dtype).itemsize

    @property
    def page_bytes(self) -> int:
        """Bytes of a page of keys and values, without the drafter's."""
        width = sum(memory.pages.width for memory in self.model.layer_memories if memory.pages is not None)
        return width * self.model.dtype.itemsize * self.engine.page_size

    @property
    def kv_bytes(self) -> int:
        """Bytes of all pages, without the drafter's."""
        return self.engine.num_pages * self.page_bytes

    def __str__(self) -> str:
        config, engine = self.config, self.engine
        dtype = str(self.model.weight_dtype or self.model.dtype).removeprefix("torch.")
        # A drafter with weights has keys and values of its own.
        exception = ", without the drafter's" if self.has_drafter_weights else ""
        guides = f"; guides {', '.join(config.handles)}" if config.handles else ""
        return (
            f"{models.name_of(config)}: {self.path}\n"
            f"    {self.model.architecture}, {in_millions(self.num_parameters)} parameters in {dtype} on "
            f"{self.device}; drafter {config.speculation.name}{guides}\n"
            f"    {engine.max_batch} requests of up to {engine.max_seq_len:,} tokens; "
            f"{in_bytes(self.weight_bytes)} of weights, up to {in_bytes(self.kv_bytes)} of pages{exception}"
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
            taken = sum(other.weight_bytes + other.kv_bytes for other in found)
            found.append(_check_contents(model, taken))
    return found


def _check(config: ServedModelConfig) -> CheckedModel:
    faults, device, count, drafter_count = FaultList(), torch.device("cpu"), 0, 0
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
    with faults.noted():
        model = with_dtype(model, config.dtype, device)
    with faults.noted():
        count = count_parameters(path)
    with faults.noted():
        drafter_paths = list(find_weights(config.speculation, path, model))
        drafter_count = sum(count_parameters(directory) for directory in drafter_paths if directory != path)
    with faults.noted():
        sampling_defaults(path, config.generation_config)
    with faults.noted():
        drafts = config.speculation.max_draft_tokens
        engine = config.engine.resolved(model.max_position_embeddings, drafts, device.type, model.has_states)
        check_beam_width(engine.max_beam_width, config.speculation, engine)
    faults.check()
    return CheckedModel(config, path, device, engine, model, count, drafter_count, bool(drafter_paths))


def _check_contents(checked: CheckedModel, taken_bytes: int) -> CheckedModel:
    """Check one model. Others will take `taken_bytes` of the memory that is free now."""
    faults, config, engine = FaultList(), checked.config, checked.engine
    with faults.noted():
        source = ModelSource.of(checked.path)
        text = source.text(checked.model.vocab_size, engine.max_seq_len)
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
            memory = DeviceMemory(max(free, 0), is_shared=checked.device.type == "cpu")
            drafts = config.speculation.max_draft_tokens
            num_pages = pages_in_memory(engine, given, checked.page_bytes, memory, drafts)
            checked = replace(checked, engine=replace(engine, num_pages=num_pages))
    faults.check()
    return checked
