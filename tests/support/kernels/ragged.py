"""A call of attention with short rows, long rows, rows without tokens, padding rows, and tokens that pad the call."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from support.kernels.attention import ALL, MIXED, MLA, OLMO, Case, Inputs, lie_apart

UNTOUCHED = 7.0


@dataclass(frozen=True)
class Piece:
    """A row: `count` tokens of a text from position `begin` on. Without a text it pads the batch."""

    count: int
    text: int | None = None
    begin: int = 0


EMPTY, PADDING = Piece(0), Piece(2)


@dataclass(frozen=True)
class Call:
    """Texts, and the short and the long rows that read their new tokens. The short rows come first."""

    texts: Case
    short: tuple[Piece, ...]
    long: tuple[Piece, ...]
    num_padding: int = 5

    def __str__(self) -> str:
        rows = "+".join(str(piece.count) for piece in (*self.short, *self.long))
        return f"{len(self.short)} of {rows} in {self.texts}"

    @property
    def short_width(self) -> int:
        return max(1, *(piece.count for piece in self.short))

    @property
    def width(self) -> int:
        return max(piece.count for piece in self.long)


CALLS = (
    # A text that decodes, one whose prompt ends in the call, and one that is read in part.
    Call(
        Case((150, 61, 200), widths=(4, 41, 70), shares=4),
        (Piece(4, 0, 146), Piece(1, 1, 60), EMPTY),
        (Piece(40, 1, 20), EMPTY, Piece(70, 2, 130)),
    ),
    # Groups of seven queries, so that tiles begin in the middle of tokens' heads; padding rows that have tokens.
    Call(
        Case((90, 33, 120, 50), widths=(3, 33, 50, 17), heads=7, kv_heads=1, norm=True, page=8, shares=2),
        (Piece(3, 0, 87), PADDING, Piece(1, 1, 32), PADDING),
        (EMPTY, Piece(32, 1), PADDING, Piece(50, 2, 70), Piece(17, 3, 33), PADDING),
    ),
    Call(
        Case((300, 70, 260), widths=(3, 21, 90), heads=8, kv_heads=2, window=60, sinks=4, page=8, shares=4),
        (Piece(3, 0, 297), Piece(1, 1, 69)),
        (Piece(20, 1, 49), Piece(90, 2, 170)),
    ),
    Call(
        Case((140, 40, 130), widths=(2, 36, 45), dim=64, dtype="bfloat16", norm=True, shares=2),
        (EMPTY, Piece(2, 0, 138), Piece(1, 1, 39)),
        (Piece(35, 1, 4), Piece(45, 2, 85), EMPTY),
    ),
    # Parts of few tokens are long rows, too; nothing decodes, so short rows have no tokens.
    Call(Case((30, 90), widths=(3, 16)), (EMPTY, EMPTY), (Piece(3, 0, 27), EMPTY, Piece(16, 1, 74))),
    # Short rows that have too many tokens for the kernel of few tokens.
    Call(
        Case((100, 60), widths=(20, 31), window=40, norm=True),
        (Piece(20, 0, 80), EMPTY, Piece(1, 1, 59)),
        (Piece(30, 1, 29), EMPTY),
    ),
)

OTHER_CALLS = (
    Call(
        replace(MIXED, lengths=(70, 33, 90), width=0, widths=(3, 21, 40), window=30, sinks=3, softcap=2.0),
        (Piece(3, 0, 67), PADDING, Piece(1, 1, 32)),
        (Piece(20, 1, 12), Piece(40, 2, 50), PADDING),
    ),
    Call(
        replace(MLA, lengths=(70, 33), width=0, widths=(2, 21), page=8),
        (Piece(2, 0, 68), Piece(1, 1, 32)),
        (EMPTY, Piece(20, 1, 12)),
    ),
    Call(
        replace(OLMO, lengths=(70, 33), width=0, widths=(2, 21), gated=True),
        (Piece(2, 0, 68), Piece(1, 1, 32)),
        (PADDING, Piece(20, 1, 12)),
    ),
    Call(
        replace(ALL, lengths=(70, 33), width=0, widths=(3, 31)),
        (Piece(3, 0, 67), PADDING, Piece(1, 1, 32)),
        (Piece(30, 1, 2), EMPTY),
    ),
)
"""Attention of other kinds (`OTHER_FEW`)."""


class RaggedInputs:
    """The tensors of a call. Tokens of padding rows, and those that pad the call, are NaN."""

    def __init__(self, call: Call) -> None:
        self.call, self.texts = call, Inputs(call.texts)
        self.pieces = (*call.short, *call.long)
        inputs = self.texts
        wide = inputs.qkv.shape[2]
        tokens, gates, tables, base = [], [], [], []
        size = call.texts.heads * inputs.layer.values.shape[3]
        for piece in self.pieces:
            if piece.text is None:
                tokens.append(torch.full((piece.count, wide), float("nan"), dtype=inputs.dtype))
                gates.append(torch.full((piece.count, size), float("nan"), dtype=inputs.dtype))
                tables.append(torch.zeros_like(inputs.page_table[0]))
            else:
                tokens.append(inputs.qkv[piece.text, piece.begin : piece.begin + piece.count])
                if inputs.gates is not None:
                    gates.append(inputs.gates[piece.text, piece.begin : piece.begin + piece.count])
                tables.append(inputs.page_table[piece.text])
            base.append(piece.begin)
        tokens.append(torch.full((call.num_padding, wide), float("nan"), dtype=inputs.dtype))
        gates.append(torch.full((call.num_padding, size), float("nan"), dtype=inputs.dtype))
        self.qkv = torch.cat(tokens)
        self.gates = None if inputs.gates is None else lie_apart(torch.cat(gates))
        self.page_table = torch.stack(tables)
        self.base = torch.tensor(base)
        self.starts = torch.tensor([0, *(piece.count for piece in self.pieces)]).cumsum(0)
        self.out = self.qkv.new_full((len(self.qkv), size), UNTOUCHED)
        if call.texts.apart:
            self.qkv = lie_apart(self.qkv)

    def results(self, out: Tensor) -> list[Tensor]:
        """Return the results of each row that has a text, from the result [N, H * D] of the call."""
        parts = out[: int(self.starts[-1])].split([piece.count for piece in self.pieces])
        return [part for part, piece in zip(parts, self.pieces, strict=True) if piece.text is not None]

    def wanted(self) -> list[Tensor]:
        """Return the same from the textbook."""
        case = self.call.texts
        of_text = self.texts.textbook().split(list(case.counts))
        return [
            of_text[piece.text][piece.begin - case.lengths[piece.text] + case.counts[piece.text] :][
                : piece.count
            ]
            for piece in self.pieces
            if piece.text is not None
        ]

    def error(self) -> float:
        """Return the largest error of `out` and of the cache; infinite if other keys were written or a result is
        NaN."""
        texts, cache = self.texts, self.texts.full_cache()
        if not torch.equal(cache.isnan(), texts.cache.isnan()):
            return float("inf")
        pairs = list(zip(self.results(self.out), self.wanted(), strict=True))
        pairs.append((texts.cache.nan_to_num(), cache.nan_to_num()))
        errors = torch.cat([(got.float() - wanted.float()).abs().flatten() for got, wanted in pairs])
        return float(errors.nan_to_num(nan=float("inf")).max())

    def is_padding_untouched(self) -> bool:
        """Whether `out` is unchanged at the padding rows and at the tokens that pad the call."""
        padding = self.out[int(self.starts[-1]) :]
        rows = self.out[: len(self.out) - len(padding)].split([piece.count for piece in self.pieces])
        without_text = [row for row, piece in zip(rows, self.pieces, strict=True) if piece.text is None]
        return all(bool((part == UNTOUCHED).all()) for part in (padding, *without_text))
