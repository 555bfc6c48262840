"""What is kept of an iteration for log-probabilities: the temperature that each position is drawn with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from weft.engine.device.results import note_temperatures


@pytest.mark.parametrize("width", [1, 3])
def test_the_guides_temperatures_go_before_the_requests(width: int) -> None:
    """Of its slot's own positions; where it says none, the request's."""
    own = torch.tensor([0.5, 0.0, 1.5, 9.0])
    state: Any = SimpleNamespace(params=SimpleNamespace(temperature=own), length=torch.zeros(4))
    slots = torch.tensor([2, 0])
    buf: Any = SimpleNamespace(slots_B=slots, temperatures_BT=torch.zeros(2, width))
    note_temperatures(state, buf, None)
    assert buf.temperatures_BT.tolist() == [[1.5] * width, [0.5] * width]
    said = torch.full((4, 4), -1.0)
    said[2, 0], said[0, 2], said[1] = 0.25, 0.0, 7.0
    note_temperatures(state, buf, said.flatten())
    assert buf.temperatures_BT.tolist() == [[0.25, 1.5, 1.5][:width], [0.5, 0.5, 0.0][:width]]
