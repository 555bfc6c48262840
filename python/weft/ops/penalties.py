"""What requests change in their logits before the grammar's mask: penalties, a bias, and bad words.

What a request asks for lies on the device, in its slot's row of `Penalties`, and so does what it is judged by: how
often each token stands in its output, which ones its prompt has, and all its tokens by position. A row of logits
that stands after drafted tokens sees those too, though they are not committed yet, so that a penalty means the
same with speculation as without.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from weft import _core
from weft.ops.library import (
    check_cuda,
    check_logits,
    check_vector,
    device_of,
    multiprocessors,
    native_logits,
    register,
    require,
    require_cuda_kernels,
    stream_of,
)


@dataclass(frozen=True)
class Penalties:
    """What the requests in R slots ask for, and their tokens; on one device, all contiguous.

    vocab is the target's vocabulary, M the room for bad words, L the most tokens of a request.
    """

    active: Tensor
    """[R] int32; where it is 0 the slot's rows are left alone, and cost nothing. Its other rows mean nothing then."""
    repetition: Tensor
    """[R] float32, positive: divides the positive logits, and multiplies the others, of tokens in prompt or output."""
    presence: Tensor
    """[R] float32, finite: taken from the logits of tokens in the output."""
    frequency: Tensor
    """[R] float32, finite: taken from the logits of tokens in the output, as often as they stand there."""
    counts: Tensor
    """[R, vocab] int32: how often each token stands in the output."""
    prompt: Tensor
    """[R, ceil(vocab / 32)] int32; bit t % 32 of word t // 32 is set where token t stands in the prompt."""
    bias: Tensor
    """[R, vocab] float32, -inf allowed: added to the logits."""
    biased: Tensor
    """[R] int32; where it is 0 the slot's bias is not read."""
    bad_words: Tensor
    """[R, M] int32: sequences of tokens, each ended by -1 or the end of the row; an empty one ends the list."""
    history: Tensor
    """[R, L] int32: the tokens of prompt and output by position."""

    def __post_init__(self) -> None:
        slots, vocab = self.counts.shape
        shapes = {
            "counts": [slots, vocab],
            "prompt": [slots, -(-vocab // 32)],
            "bias": [slots, vocab],
            "bad_words": [slots, self.bad_words.shape[-1]],
            "history": [slots, self.history.shape[-1]],
        }
        for field in fields(self):
            tensor: Tensor = getattr(self, field.name)
            is_float = field.name in ("repetition", "presence", "frequency", "bias")
            dtype = torch.float32 if is_float else torch.int32
            shape = shapes.get(field.name, [slots])
            fits = tensor.dtype is dtype and list(tensor.shape) == shape and tensor.is_contiguous()
            require(
                fits and tensor.device == self.counts.device,
                f"{field.name} must be {shape} {str(dtype).removeprefix('torch.')}, contiguous, on "
                f"{self.counts.device}; got {list(tensor.shape)} {tensor.dtype} on {tensor.device}",
            )

    @staticmethod
    def neutral(
        slots: int, vocab: int, num_bad_words: int, max_length: int, device: torch.device | str = "cpu"
    ) -> Penalties:
        """Tables of `slots` rows that ask for nothing; `num_bad_words` counts tokens and the ends of words."""

        def ints(*shape: int, value: int = 0) -> Tensor:
            return torch.full(shape, value, dtype=torch.int32, device=device)

        def floats(*shape: int, value: float = 0.0) -> Tensor:
            return torch.full(shape, value, dtype=torch.float32, device=device)

        return Penalties(
            active=ints(slots),
            repetition=floats(slots, value=1.0),
            presence=floats(slots),
            frequency=floats(slots),
            counts=ints(slots, vocab),
            prompt=ints(slots, -(-vocab // 32)),
            bias=floats(slots, vocab),
            biased=ints(slots),
            bad_words=ints(slots, num_bad_words, value=-1),
            history=ints(slots, max_length, value=-1),
        )


def penalize_(
    logits: Tensor,
    slot: Tensor,
    penalties: Penalties,
    history_length: Tensor,
    extra: Tensor,
    num_extra: Tensor,
    d2t: Tensor | None = None,
) -> None:
    """Change the logits as their slots ask, in place: repetition, presence, frequency, bias, then bad words.

    logits: [n, V] float32, float16 or bfloat16; the last dimension contiguous, rows any distance apart. Without
        `d2t` column c stands for token c, and columns beyond the tables' vocabulary are left alone.
    slot: [n] int64. A row whose slot is out of bounds is left alone.
    history_length: [n] int64, at most L: how many tokens of the slot's history stand before the row's position.
    extra, num_extra: [n, E] and [n] int64; after these stand the row's first num_extra tokens of `extra`, drafted
        and not committed; -1 is no token. They count as output.
    d2t: [V] int64; column c stands for token c + d2t[c].
    A bad word's last token is blocked where the tokens before it are those that the context ends with; that of a
    word of one token always. Arithmetic is in float32, rounded once to the logits' dtype; no NaN comes about where
    there is none. Raises InputError for tensors that are not as above, and InterfaceError for CUDA tensors in a
    build without CUDA.
    """
    _PENALIZE(logits, slot, *_tables(penalties), history_length, extra, num_extra, d2t)


def count_tokens_(
    penalties: Penalties, slot: Tensor, tokens: Tensor, count: Tensor, position: Tensor
) -> None:
    """Append tokens to their slots' output, in place: to `history` from a position on, and to `counts`.

    tokens: [n, T] int64, contiguous, of which the first count[i] of a row are meant; slot, count, position: [n]
    int64. Positions outside of the history and tokens outside of the vocabulary are left out, and so is a row whose
    slot is out of bounds. Rows of one slot may come in any order.
    """
    _COUNT(tokens, slot, count, position, penalties.counts, penalties.history)


def _tables(p: Penalties) -> tuple[Tensor, ...]:
    """In the order of the operation's arguments and of the extension's."""
    return (
        p.active, p.repetition, p.presence, p.frequency, p.counts, p.prompt, p.bias, p.biased, p.bad_words, p.history,
    )  # fmt: skip


def _native(tables: tuple[Tensor, ...]) -> _core.PenaltyTables:
    slots, vocab = tables[4].shape
    widths = tables[8].shape[1], tables[9].shape[1]
    return _core.PenaltyTables(slots, vocab, *widths, *[tensor.data_ptr() for tensor in tables])


def _check_penalize(logits: Tensor, slot: Tensor, *rest: Any) -> None:
    tables, (history_length, extra, num_extra, *d2t) = rest[:10], rest[10:]
    check_logits(logits, in_place=True)
    n, vocab = logits.shape
    device = tables[0].device
    require(device == logits.device, f"the penalties are on {device}, the logits on {logits.device}")
    check_vector("slot", slot, (torch.int64,), n, logits)
    check_vector("history_length", history_length, (torch.int64,), n, logits)
    check_vector("num_extra", num_extra, (torch.int64,), n, logits)
    _check_tokens("extra", extra, n, logits)
    if d2t and d2t[0] is not None:
        check_vector("d2t", d2t[0], (torch.int64,), vocab, logits)


def _check_tokens(name: str, tokens: Tensor, n: int, like: Tensor) -> None:
    fits = (
        tokens.dtype is torch.int64 and tokens.dim() == 2 and tokens.shape[0] == n and tokens.is_contiguous()
    )
    require(
        fits and tokens.device == like.device,
        f"{name} must be [{n}, any] int64, contiguous, on {like.device}; "
        f"got {list(tokens.shape)} {tokens.dtype} on {tokens.device}",
    )


def _penalize_arguments(
    logits: Tensor, slot: Tensor, *rest: Any
) -> tuple[int, int, int, int, int, _core.PenaltyTables, int, int, int, int, int, int]:
    _check_penalize(logits, slot, *rest)
    tables, (history_length, extra, num_extra, *d2t) = rest[:10], rest[10:]
    return (
        *native_logits(logits),
        _native(tables),
        slot.data_ptr(),
        history_length.data_ptr(),
        extra.data_ptr(),
        num_extra.data_ptr(),
        extra.shape[1],
        d2t[0].data_ptr() if d2t and d2t[0] is not None else 0,
    )


def _penalize_cpu(logits: Tensor, slot: Tensor, *rest: Any) -> None:
    _core.penalize_cpu(*_penalize_arguments(logits, slot, *rest), torch.get_num_threads())


def _penalize_cuda(logits: Tensor, slot: Tensor, *rest: Any) -> None:
    require_cuda_kernels()
    arguments = _penalize_arguments(logits, slot, *rest)
    sms = multiprocessors(logits.get_device())
    with device_of(logits):
        check_cuda(_core.penalize_cuda(*arguments, sms, stream_of(logits)))


def _check_count(
    tokens: Tensor, slot: Tensor, count: Tensor, position: Tensor, counts: Tensor, history: Tensor
) -> None:
    n = slot.shape[0]
    _check_tokens("tokens", tokens, n, counts)
    check_vector("slot", slot, (torch.int64,), n, counts)
    check_vector("count", count, (torch.int64,), n, counts)
    check_vector("position", position, (torch.int64,), n, counts)


def _count_arguments(
    tokens: Tensor, slot: Tensor, count: Tensor, position: Tensor, counts: Tensor, history: Tensor
) -> tuple[int, int, int, int, int, int, int, int, int, int, int]:
    _check_count(tokens, slot, count, position, counts, history)
    return (
        counts.shape[0],
        counts.shape[1],
        history.shape[1],
        counts.data_ptr(),
        history.data_ptr(),
        tokens.shape[0],
        tokens.shape[1],
        slot.data_ptr(),
        tokens.data_ptr(),
        count.data_ptr(),
        position.data_ptr(),
    )


def _count_cpu(*tensors: Tensor) -> None:
    _core.count_tokens_cpu(*_count_arguments(*tensors))


def _count_cuda(*tensors: Tensor) -> None:
    require_cuda_kernels()
    arguments = _count_arguments(*tensors)
    with device_of(tensors[0]):
        check_cuda(_core.count_tokens_cuda(*arguments, stream_of(tensors[0])))


_PENALIZE = register(
    "penalize_(Tensor(a!) logits, Tensor slot, Tensor active, Tensor repetition, Tensor presence, Tensor frequency,"
    " Tensor counts, Tensor prompt, Tensor bias, Tensor biased, Tensor bad_words, Tensor history,"
    " Tensor history_length, Tensor extra, Tensor num_extra, Tensor? d2t=None) -> ()",
    cpu=_penalize_cpu,
    cuda=_penalize_cuda,
    fake=_check_penalize,
)
_COUNT = register(
    "count_tokens_(Tensor tokens, Tensor slot, Tensor count, Tensor position, Tensor(a!) counts,"
    " Tensor(b!) history) -> ()",
    cpu=_count_cpu,
    cuda=_count_cuda,
    fake=_check_count,
)
