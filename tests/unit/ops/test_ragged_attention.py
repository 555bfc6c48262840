"""Attention of short and long rows in one call against the textbook: Triton's kernels through its interpreter.

Run as a script under TRITON_INTERPRET=1 this file checks the Triton kernels and prints what it found.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from support.kernels.interpreter import interpreted, make_hostile, needs_triton
from support.kernels.ragged import CALLS, OTHER_CALLS, Call, Piece, RaggedInputs

pytestmark = [pytest.mark.slow, needs_triton]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Results of the kernels, from one interpreter process."""
    return interpreted(__file__)


@pytest.mark.parametrize("call", CALLS + OTHER_CALLS, ids=str)
def test_triton_matches_the_textbook(call: Call, found: dict[str, Any]) -> None:
    assert found[str(call)]["error"] < call.texts.tolerance


@pytest.mark.parametrize("call", CALLS + OTHER_CALLS, ids=str)
def test_padding_is_skipped(call: Call, found: dict[str, Any]) -> None:
    """Its tokens are NaN, and the output at padding rows and at padding tokens stays as it was."""
    assert found[str(call)]["untouched"]


@pytest.mark.parametrize("call", CALLS + OTHER_CALLS, ids=str)
def test_a_row_has_the_bits_of_a_call_of_its_own(call: Call, found: dict[str, Any]) -> None:
    assert found[str(call)]["different"] == []


def interpret() -> dict[str, Any]:
    """Every call through the kernels."""
    from weft.ops import attention_triton

    def attend(
        inputs: RaggedInputs, qkv: Tensor, table: Tensor, base: Tensor, starts: Tensor | None, width: int,
        num_short: int, short_width: int, out: Tensor, gate: Tensor | None,
    ) -> None:  # fmt: skip
        heads, layer = inputs.texts.heads, inputs.texts.layer
        q_norm, k_norm = heads.norms or (None, None)
        attention_triton.attend(
            qkv, layer.keys, layer.values, table, base, None, starts, width, 0, True, num_short, short_width,
            heads.rotary, q_norm, k_norm, heads.eps, heads.count, heads.scale, heads.softcap, heads.sink_logits,
            layer.window.size, layer.window.sinks, out, heads.first_rotated, gate,
        )  # fmt: skip

    def alone(inputs: RaggedInputs, row: int, piece: Piece) -> Tensor:
        """Row `row` in a call without other rows, by the kernels that compute it among others."""
        tokens = slice(int(inputs.starts[row]), int(inputs.starts[row + 1]))
        table, base = inputs.page_table[row, None], inputs.base[row, None]
        out, gate = inputs.out[tokens].clone(), None if inputs.gates is None else inputs.gates[tokens]
        if row < len(inputs.call.short):
            attend(inputs, inputs.qkv[tokens].clone(), table, base, None, piece.count, 0, 0, out, gate)
        else:
            # A short row without tokens makes the other row a long one.
            starts = torch.tensor([0, 0, piece.count])
            table, base = table.expand(2, -1).contiguous(), base.expand(2).contiguous()
            attend(inputs, inputs.qkv[tokens].clone(), table, base, starts, piece.count, 1, 1, out, gate)
        return out

    def check(call: Call) -> dict[str, Any]:
        inputs, others = RaggedInputs(call), RaggedInputs(call)
        attend(
            inputs, inputs.qkv.clone(), inputs.page_table, inputs.base, inputs.starts, call.width,
            len(call.short), call.short_width, inputs.out, inputs.gates,
        )  # fmt: skip
        singly = {
            row: alone(others, row, piece)
            for row, piece in reversed(list(enumerate(others.pieces)))
            if piece.text is not None and piece.count
        }
        different = [
            row
            for row, out in singly.items()
            if not torch.equal(out, inputs.out[inputs.starts[row] : inputs.starts[row + 1]])
        ]
        return {
            "error": inputs.error(),
            "untouched": inputs.is_padding_untouched(),
            "different": different,
        }

    make_hostile(seed=12)
    return {str(call): check(call) for call in CALLS + OTHER_CALLS}


if __name__ == "__main__":
    print(json.dumps(interpret()))
