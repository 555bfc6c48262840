"""The operations by slot in plain torch, composed of the references in this folder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.ops.slots import pick_drafts_


def pick_drafts(logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return the drafts [B] that `pick_drafts_` draws and writes."""
    out = torch.full((logits.shape[0],), -7, device=logits.device)
    pick_drafts_(logits, *args, **kwargs, out=out)
    return out
