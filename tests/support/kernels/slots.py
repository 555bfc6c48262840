"""The operations by slot in plain torch, put together of the references beside this."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.ops.slots import pick_drafts_


def pick_drafts(logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The drafts [B] of `pick_drafts_`, which are also in their places."""
    out = torch.full((logits.shape[0],), -7, device=logits.device)
    pick_drafts_(logits, *args, **kwargs, out=out)
    return out
