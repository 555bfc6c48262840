"""What a launched function may not do while it is captured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from support.captured import Captured
from weft.errors import GraphError
from weft.runtime.recorder import current_recorder

READS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x[0].item(),
    "int": lambda x: int(x[0]),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "array": lambda x: __import__("numpy").asarray(x),
    "if": lambda x: x.fill_(1) if x.any() else None,
    "compare": lambda x: torch.equal(x, x),
    "close": lambda x: torch.allclose(x, x),
    "contains": lambda x: 1 in x,
    "index by a tensor": lambda x: x[x[0].long()],
    "range": lambda x: range(x.long()[0]),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "mask put": lambda x: x.__setitem__(x > 0, x[:1].expand(2)),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: x.long().bincount(),
    "repeat": lambda x: x.repeat_interleave(x.long()),
    "print": lambda x: str(x),
}


@pytest.mark.parametrize("name", READS)
def test_reading_a_value_is_found(name: str) -> None:
    x = torch.tensor([1.0, 0.0, 2.0])
    with pytest.raises(GraphError, match="reads values on the host"):
        Captured(lambda: READS[name](x + 0))
    with pytest.raises(GraphError, match="reads values on the host"):
        Captured(lambda: READS[name](x))
    assert x.tolist() == [1, 0, 2]
    x.add_(1)
    assert current_recorder() is None


def test_errors_of_shapes_are_torchs_own() -> None:
    x = torch.zeros(3, 4)
    with pytest.raises(RuntimeError, match=r"cannot be multiplied|same reduction dim"):
        Captured(lambda: x @ x)
    with pytest.raises(RuntimeError, match=r"size of tensor a|broadcast"):
        Captured(lambda: x.clone().add_(torch.zeros(7)))


@pytest.mark.parametrize("resize", [lambda x: x.resize_(9), lambda x: x.set_(x.untyped_storage(), 0, (1,))])
def test_other_memory_for_a_tensor_is_refused(resize: Callable[[Tensor], object]) -> None:
    x = torch.zeros(4)
    with pytest.raises(GraphError, match="other memory"):
        Captured(lambda: resize(x))
    assert x.shape == (4,)


def test_an_out_of_another_shape_is_refused() -> None:
    x = torch.zeros(4)
    with pytest.raises(GraphError, match=r"gives \[4\], and its out is \[0\]"):
        Captured(lambda: torch.add(x, 1, out=torch.empty(0)))
