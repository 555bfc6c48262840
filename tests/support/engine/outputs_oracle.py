"""The reference for the tensors that requests gather: transformers' tensors for a whole text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from support.engine.references import Checkpoint


@dataclass
class Expected:
    """transformers' tensors for a whole text, by position: logits, and the input of each layer."""

    logits: Tensor
    states: list[Tensor]

    @classmethod
    def of(cls, checkpoint: Checkpoint, tokens: list[int]) -> Expected:
        last: list[Tensor] = []
        hook = checkpoint.model.model.layers[-1].register_forward_hook(
            lambda _, __, out: last.append(_first(out))
        )
        with torch.inference_mode():
            out = checkpoint.model(torch.tensor([tokens]), output_hidden_states=True)
        hook.remove()
        return cls(out.logits[0], [state[0] for state in (*out.hidden_states[:-1], last[0])])

    def named(self, name: str, where: slice) -> Tensor:
        """The tensor that the model marks as `name`, at these positions. Token ids of the most likely tokens are
        left out."""
        if name == "logits":
            return self.logits[where]
        if name == "TopKLogits":
            return self.logits[where].topk(10).values
        return self.states[int(name.rpartition(".")[2])][where]


def close(got: Tensor | None, wanted: Tensor) -> None:
    """Check that two tensors are equal up to rounding."""
    assert got is not None
    torch.testing.assert_close(got, wanted, atol=2e-3, rtol=2e-3)


def _first(out: Any) -> Tensor:
    tensor: Tensor = out[0] if isinstance(out, tuple) else out
    return tensor
