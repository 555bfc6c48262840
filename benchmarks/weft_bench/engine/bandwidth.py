"""What an iteration must read from memory, from the shapes alone, and how fast memory is.

Counted is what no kernel can avoid: every matrix of the target once and of an EAGLE3 head once for each draft, the
keys and values of the context, and the logits, which sampling reads. It does not count rows of the embedding,
activations, and all that is written; they are small beside it.
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
COPIES = 4  # in one sample, so that launching them weighs nothing


@dataclass(frozen=True)
class Traffic:
    """Bytes that an iteration reads."""

    target: int
    head: int
    kv: int
    logits: int

    @property
    def total(self) -> int:
        """All bytes."""
        return self.target + self.head + self.kv + self.logits


def traffic(
    config: ModelConfig, head: Eagle3Head | None, batch: int, num_drafts: int, context: float
) -> Traffic:
    """The bytes of an iteration over `batch` rows with `context` tokens each, that verifies and makes `num_drafts`
    drafts; the head is None where there are none."""
    size = config.dtype.itemsize
    token_kv = 2 * config.num_kv_heads * config.head_dim * size
    logits = batch * (num_drafts + 1) * config.vocab_size * size
    kv = config.num_layers * token_kv * context * batch
    head_bytes = 0
    if head is not None and num_drafts:
        head_bytes = combine_size(head) * size + num_drafts * draft_size(head) * size
        kv += num_drafts * head.config.num_kv_heads * head.config.head_dim * 2 * size * context * batch
        logits += batch * num_drafts * head.draft_vocab_size * size
    return Traffic(target_size(config) * size, head_bytes, round(kv), logits)


def target_size(config: ModelConfig) -> int:
    """Weights that a forward of the target reads: all but the embedding, of which it reads rows."""
    layer = decoder_size(config, config.hidden_size) + 2 * config.hidden_size
    return config.num_layers * layer + (1 + config.vocab_size) * config.hidden_size


def combine_size(head: Eagle3Head) -> int:
    """Weights that turn the target's hidden states into a feature, once in an iteration."""
    return len(head.aux_layers) * head.config.hidden_size**2


def draft_size(head: Eagle3Head) -> int:
    """Weights that each draft reads: one layer over an embedding and a feature, three norms of it, the last norm, and
    the head over the draft vocabulary."""
    hidden = head.config.hidden_size
    return decoder_size(head.config, 2 * hidden) + (4 + head.draft_vocab_size) * hidden


def decoder_size(config: ModelConfig, inputs: int) -> int:
    """The matrices of a decoder layer whose attention reads rows of `inputs`; without biases."""
    heads, hidden = config.num_heads * config.head_dim, config.hidden_size
    keys_and_values = 2 * config.num_kv_heads * config.head_dim
    return (heads + keys_and_values) * inputs + hidden * heads + 3 * config.intermediate_size * hidden


def copy_bandwidth(runtime: Runtime, num_bytes: int | None = None, repeat: int = 15) -> float:
    """Bytes per second of memory, read and written, that copying a large buffer reaches; the median."""
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
