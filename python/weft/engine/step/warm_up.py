"""Warming up: what the first requests would wait for is done before they come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.config import Speculation
from weft.core import SamplingParams
from weft.engine.device.sampling import SlotSampling
from weft.engine.step.opening import PromptRow, open_rows
from weft.engine.step.prefill import Prefill
from weft.engine.step.reading import parts_together
from weft.engine.step.runner import Decoder, ModelRunner, bucket
from weft.engine.step.step import Guides, Plan

SHORT_PROMPT = 8
"""Tokens of the shorter of the prompts that are read: another attention kernel is for few tokens of a row."""


def warm_up(decoder: Decoder, runner: ModelRunner, speculation: Speculation) -> None:
    """Read a short prompt and one as long as a chunk, alone and beside another; capture the graphs of every kind of
    iteration in use (`ordinary_plans`). What kernels need is loaded and compiled then, for this thread. Needs an idle
    engine.

    The prompts are of the slot that only pads, whose pages are nobody's: nothing of them is left.
    """
    config = decoder.config
    runner.drop_snapshots()
    _read_nothing(decoder, runner.prefill, [SHORT_PROMPT], Guides.TARGET)
    _read_nothing(decoder, runner.prefill, [config.prefill_chunk], Guides.NONE)
    if config.max_batch > 1:
        _read_nothing(decoder, runner.prefill, [SHORT_PROMPT] * 2, Guides.TARGET)
        _read_nothing(
            decoder, runner.prefill, [SHORT_PROMPT, config.prefill_chunk - SHORT_PROMPT], Guides.NONE
        )
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


def _read_nothing(decoder: Decoder, prefill: Prefill, lengths: Sequence[int], guides: Guides) -> None:
    """Read prompts together, in the slot that only pads, and sample after them. Waits for it."""
    runtime, parts, config = decoder.runtime, decoder.parts, decoder.config
    vocab_size = parts.model.config.vocab_size
    rows = []
    for length in lengths:
        tokens = [0] * max(min(length, config.max_seq_len - 1), 1)
        sampling = SlotSampling(runtime, SamplingParams(), tokens, vocab_size)
        rows.append(PromptRow((parts.state.dummy,), np.array(tokens, dtype=np.int64), (), sampling))
    open_rows(runtime, decoder.stream, decoder.grammar, parts, rows)
    shares, buffers = [(row, row.length) for row in rows], prefill.buffers
    for together in parts_together(shares, buffers.num_tokens, buffers.num_rows):
        plan = Plan(sum(part.ends for part in together), 0, guides)
        prefill.read(together, plan, lambda: decoder.grammar.push([], {}))
    decoder.stream.synchronize()
    for row in rows:
        if row.error is not None:
            raise row.error
