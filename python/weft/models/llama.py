"""Llama, the decoder without switches."""

from __future__ import annotations

from weft.models.decoder import Decoder


class Llama(Decoder):
    """A pre-norm decoder with rotary embedding, grouped-query attention and SwiGLU."""
