"""Writes the report of `weft inspect`, whose lines can be pasted into a bug report."""

from __future__ import annotations

import platform
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from weft.config import EngineConfig, HostTasks, Speculation
from weft.config.environment import processor, versions
from weft.engine.runner.step import GuidedLogits, Plan
from weft.errors import InterfaceError, WeftError
from weft.runtime import get
from weft.runtime.cuda import unavailable_reason


def report(model: Path, device: str = "auto") -> Iterator[str]:
    """Yield lines about this machine, its packages, and a model directory for `device`."""
    found = ", ".join(f"{name} {version}" for name, version in versions().items())
    yield f"versions: {found}, Python {sys.version.split()[0]}"
    yield f"machine: {processor()}, {torch.get_num_threads()} torch threads, {platform.system()} {platform.machine()}"
    yield from cuda_lines()
    yield matcher_line()
    yield llguidance_line()
    yield from model_lines(model, device)


def cuda_lines() -> Iterator[str]:
    """Yield lines about the driver, the GPU and the compiled kernels. A part that is missing has its reason."""
    from weft.ops.library import has_cuda_kernels

    reason = unavailable_reason()
    yield f"CUDA driver: {f'not used: {reason}' if reason else 'found'}"
    if reason is None:
        yield f"GPU: {torch.get_device_module('cuda').get_device_name()}"
        missing = get("cuda").prepare_polling()
        yield f'EngineConfig(host_tasks="polling"): {f"as callbacks: {missing}" if missing else "can be used"}'
    yield f"CUDA kernels: {'compiled' if has_cuda_kernels() else 'not compiled (no nvcc when weft was built)'}"


def matcher_line() -> str:
    """Report whether XGrammar's matchers run natively, without the GIL."""
    from weft.grammar.xgrammar.backend import native_is_usable

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        native = native_is_usable()
    why = "; ".join(str(w.message) for w in caught)
    return f"XGrammar matchers: {'native, without the GIL' if native else f'through Python: {why}'}"


def llguidance_line() -> str:
    """Report whether LLGuidance's matchers are available. weft calls them natively only."""
    from weft.grammar.llguidance.backend import check_interface

    try:
        check_interface()
    except InterfaceError as error:
        return f"LLGuidance matchers: none: {error}"
    return "LLGuidance matchers: native, without the GIL"


def model_lines(path: Path, device: str) -> Iterator[str]:
    """Yield lines about the content of a model directory. Reads no weights."""
    from weft.client.model_facts import ModelFacts, fact_lines
    from weft.models.stored import gguf_file

    packed = gguf_file(path)
    yield (
        f"model directory: {path}"
        if packed is None
        else f"model file: {packed}, with config and tokenizer in {path}"
    )
    try:
        runtime = get(device)
        facts = ModelFacts.read(path, runtime.device)
        yield from (f"  {line}" for line in fact_lines(facts, runtime.free_memory()))
    except WeftError:
        yield "  weft can't run it:"
        raise


def graph_dump(
    model: str | Path | None, device: str, speculation: Speculation, host_tasks: HostTasks = "callback"
) -> Iterator[str]:
    """Yield the nodes and edges of a guided iteration of batch size 1."""
    from weft.llm import LLM

    config = EngineConfig(max_batch=1, host_tasks=host_tasks)
    with LLM(model, device=device, speculation=speculation, engine=config) as llm:
        masks_drafts = speculation.guide_drafts is not False and speculation.max_draft_tokens > 0
        guided_logits = GuidedLogits.DRAFTS if masks_drafts else GuidedLogits.TARGET
        plan = Plan(batch=1, num_drafts=speculation.draft_tokens(1), guided_logits=guided_logits)
        dump = llm.engine.graphs.dump(plan)
    kinds = Counter(kind for kind, _ in dump.nodes)
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    yield f"graph of one guided iteration, batch 1, on {get(device).device}: {len(dump.nodes)} nodes ({counted})"
    yield f"  {kinds['python']} of them call Python when they run"
    for number, (kind, label) in enumerate(dump.nodes):
        after = [str(b) for a, b in dump.edges if a == number]
        yield f"  {number:3d} {kind:8s} {label or '-'} -> {' '.join(after) or 'end'}"
