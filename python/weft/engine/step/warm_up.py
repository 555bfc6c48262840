"""Warming up: what the first requests would wait for is done before they come."""

from __future__ import annotations

import torch

from weft.config import Speculation
from weft.core import SamplingParams
from weft.engine.device.sampling import SamplingRow, SlotSampling
from weft.engine.step.prefill import PrefillBuffers, PromptRow, open_row, read_prompt
from weft.engine.step.runner import Decoder, ModelRunner, bucket
from weft.engine.step.step import Guides, Plan
from weft.runtime.buffers import pinned_copy

SHORT_PROMPT = 8
"""Tokens of the shorter of the two prompts that are read: another attention kernel is for few rows."""


def warm_up(decoder: Decoder, runner: ModelRunner, speculation: Speculation) -> None:
    """Read a short prompt and one as long as a chunk, and capture the graphs of every kind of iteration in use
    (`ordinary_plans`). What kernels need is loaded and compiled then, for this thread. Needs an idle engine.

    The prompts are of the slot that only pads, whose pages are nobody's: nothing of them is left.
    """
    config = decoder.config
    buffers = PrefillBuffers(decoder.parts, config.prefill_chunk)
    runner.drop_snapshots()
    _read_nothing(decoder, buffers, SHORT_PROMPT, Guides.TARGET)
    _read_nothing(decoder, buffers, config.prefill_chunk, Guides.NONE)
    for plan in ordinary_plans(runner, speculation, config.max_batch):
        runner.prepare(plan)


def ordinary_plans(runner: ModelRunner, speculation: Speculation, max_batch: int) -> list[Plan]:
    """Every kind of iteration that requests without logits processors can need, each once."""
    kinds = {(bucket(rows, max_batch), speculation.draft_tokens(rows)) for rows in range(1, max_batch + 1)}
    kinds |= {(batch, 0) for batch, _ in kinds}  # of requests that want no drafts
    plans = []
    for batch, num_drafts in sorted(kinds):
        guides = {runner.guides(num_drafts, masks_drafts) for masks_drafts in runner.guidance.ways}
        plans += [Plan(batch, num_drafts, each) for each in (Guides.NONE, *sorted(guides))]
    return plans


def _read_nothing(decoder: Decoder, buffers: PrefillBuffers, length: int, guides: Guides) -> None:
    """Read a prompt in the slot that only pads, and sample after it. Waits for it."""
    runtime, stream, parts, config = decoder.runtime, decoder.stream, decoder.parts, decoder.config
    assert config.max_seq_len is not None
    tokens = [0] * min(length, config.max_seq_len - 1)
    vocab_size = parts.model.config.vocab_size
    sampling = SamplingRow(runtime, SlotSampling(SamplingParams()), tokens, vocab_size)
    no_pages = pinned_copy(runtime, (), torch.int32)
    row = PromptRow((parts.state.dummy,), pinned_copy(runtime, tokens, torch.int64), no_pages, sampling)
    open_row(stream, decoder.lane, parts, row)
    read_prompt(
        stream, decoder.lane, parts, buffers, row, len(tokens), Plan(1, 0, guides),
        lambda: decoder.lane.push([], {}),
    )  # fmt: skip
    stream.synchronize()
    if row.error is not None:
        raise row.error
