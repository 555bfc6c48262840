"""TensorRT-LLM's other inputs: embeddings, images, rotary tables. Values are kept as given; a request with one of them
is refused."""

from __future__ import annotations

from collections.abc import Sequence

from weft.executor.types.fields import Several, Tensor
from weft.executor.types.settings import Settings


class PromptTuningConfig(Settings):
    """Embeddings [virtual tokens, hidden size] for token ids beyond the vocabulary."""

    embedding_table: Tensor
    input_token_extra_ids: Several[int] | None = None


class MultimodalInput(Settings):
    """The images of a prompt: their hashes, first positions and lengths in tokens."""

    multimodal_hashes: Several[Sequence[int]]
    multimodal_positions: Several[int]
    multimodal_lengths: Several[int]


class MropeConfig(Settings):
    """Rotary position embeddings of images."""

    mrope_rotary_cos_sin: Tensor
    mrope_position_deltas: int | Tensor
