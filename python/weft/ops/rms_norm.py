"""RMS norm over the last dimension: x / sqrt(mean(x²) + eps) * weight."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from weft import _core
from weft.ops.library import register


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x` [N, H] and `weight` [H], contiguous and of one dtype: [N, H]."""
    out: Tensor = _RMS_NORM(x, weight, eps)
    return out


def _rms_norm_torch(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _rms_norm_cpu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if x.dtype is not torch.float32:
        return _rms_norm_torch(x, weight, eps)
    x = x.contiguous()
    rows, width = x.shape
    out = torch.empty(rows, width)
    _core.rms_norm_cpu(x.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, width, eps)
    return out


def _rms_norm_fake(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x.new_empty(x.shape)


_RMS_NORM = register(
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    cpu=_rms_norm_cpu,
    cuda=_rms_norm_torch,
    fake=_rms_norm_fake,
)
