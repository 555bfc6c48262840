"""Computes the bytes that an iteration must read from its shapes, and measures the memory bandwidth.

It counts only reads that no kernel can avoid: every matrix of the target once, every matrix of an EAGLE3 head once
per draft, the context's keys and values, and the logits, which sampling reads. Embedding rows, activations and all
writes are negligible in comparison.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import torch

from weft.models.config import ModelConfig
from weft.models.eagle3_head import Eagle3Head
from weft.runtime.interface import Runtime

BUFFER_BYTES = {"cpu": 1 << 28, "cuda": 1 << 31}
COPIES = 4  # per sample, so that launch overhead is negligible


@dataclass(frozen=True)
class Traffic:
    """The bytes that an iteration reads."""

    target: int
    head: int
    kv: int
    logits: int

    @property
    def total(self) -> int:
        """The sum of all bytes."""
        return self.target + self.head + self.kv + self.logits


def traffic(
    config: ModelConfig, head: Eagle3Head | None, batch: int, num_drafts: int, context: float
) -> Traffic:
    """Return the bytes of an iteration that verifies and makes `num_drafts` drafts, for `batch` rows with `context`
    tokens each. `head` is None without a drafter."""
    size = config.dtype.itemsize
    logits = batch * (num_drafts + 1) * config.vocab_size * size
    width = sum(memory.pages.width for memory in config.layer_memories if memory.pages is not None)
    kv = width * size * context * batch
    head_bytes = 0
    if head is not None and num_drafts:
        head_bytes = combine_size(head) * size + num_drafts * draft_size(head) * size
        kv += num_drafts * head.config.num_kv_heads * head.config.head_dim * 2 * size * context * batch
        logits += batch * num_drafts * head.draft_vocab_size * size
    return Traffic(target_size(config) * size, head_bytes, round(kv), logits)


def target_size(config: ModelConfig) -> int:
    """Return the number of weights that a target forward reads. The embedding does not count, because only a few of its
    rows are read."""
    layer = decoder_size(config, config.hidden_size) + 2 * config.hidden_size
    return config.num_layers * layer + (1 + config.vocab_size) * config.hidden_size


def combine_size(head: Eagle3Head) -> int:
    """Return the number of weights that combine the target's hidden states into a feature. They are read once per
    iteration."""
    return len(head.aux_layers) * head.config.hidden_size**2


def draft_size(head: Eagle3Head) -> int:
    """Return the number of weights that each draft reads: one layer over an embedding and a feature with its three
    norms, the last norm, and the output projection over the draft vocabulary."""
    hidden = head.config.hidden_size
    return decoder_size(head.config, 2 * hidden) + (4 + head.draft_vocab_size) * hidden


def decoder_size(config: ModelConfig, inputs: int) -> int:
    """Return the number of weights in a decoder layer's matrices, without biases. Its attention reads rows of size
    `inputs`."""
    heads, hidden = config.num_heads * config.head_dim, config.hidden_size
    keys_and_values = 2 * config.num_kv_heads * config.head_dim
    return (heads + keys_and_values) * inputs + hidden * heads + 3 * config.intermediate_size * hidden


def copy_bandwidth(runtime: Runtime, num_bytes: int | None = None, repeat: int = 15) -> float:
    """Return the bandwidth of copying a large buffer: the median bytes per second, read plus written."""
    if num_bytes is None:
        num_bytes = BUFFER_BYTES[runtime.device.type]
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=runtime.device)
    target = torch.ones_like(source)
    times = []
    for _ in range(repeat + 2):
        runtime.synchronize()
        begin = time.perf_counter()
        for _ in range(COPIES):
            target.copy_(source)
        runtime.synchronize()
        times.append((time.perf_counter() - begin) / COPIES)
    return 2 * num_bytes / median(times[2:])
