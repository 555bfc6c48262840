"""Matmuls with a decoder's weights, each fused with the preceding norm and the following additions in one kernel.

    y = cap(scale * activation(norm(x) @ weight.T + bias)) + residual,     cap(y) = softcap * tanh(y / softcap)

Instead of `x`, the matmul may read x + norm(y) for another tensor y (`Added`): a norm after a decoder's sub-layer then
costs no operation, because the next matmul does it.

Each part but the product is optional. An activation with gates multiplies one half of the sums with the other.

On the CPU, activations are float32 and weights keep their dtype; 16-bit weights are widened exactly when they are read.
A row's result depends on that row alone, bit for bit, for any number of rows.

Some products round their input rows (`Activations`): with weights in bfloat16, rows are rounded to bfloat16 where the
processor multiplies bfloat16 faster than float32. Processors with AMX have another order of summation, so the last bits
of their results differ from those of other processors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from weft import _core
from weft.ops.activation import Activation, Epilogue
from weft.ops.device_blocks import Stored, num_outputs, stored_parts
from weft.ops.device_packing import pack_device
from weft.ops.formats import Activations
from weft.ops.library import address, device_of, register, require, run_kernel, triton_kernels
from weft.ops.packing import Packed, activations_of, format_of, outputs_of, pack_matrix, parts_of
from weft.ops.quantized import Matrix, Quantized

FEW_ROWS = 16
"""The largest number of rows for weft's kernel on CUDA. With more rows, torch computes the matmul."""

WIDENED = 1 << 27
"""The numbers of a quantised weight that are widened at once for torch's matmul."""


@dataclass(frozen=True)
class Norm:
    """RMS norm: x / sqrt(mean(x²) + eps) * weight over the last dimension. `weight` [H] has the dtype of x, or it is
    float32."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor, out: Tensor | None = None, live: Tensor | None = None) -> Tensor:
        """Norm the rows of `x` [N, H], whose last dimension is contiguous. The result is a new tensor or `out`.
        `live` is as in `Linear`."""
        out = x.new_empty(x.shape) if out is None else out
        _NORM(x, self.weight, self.eps, out, live)
        return out


@dataclass(frozen=True)
class Added:
    """The input of a matmul, x + norm(rows), which is also written to `total`. `rows` and `total` are [N, in] as `x`.
    Programs read `x`, `rows` and the residual while others write `total`, so it is none of them."""

    rows: Tensor
    norm: Norm
    total: Tensor


class Linear:
    """A weight [out, in], with `bias` [out] or None, stored in the layout of its device's kernels. Both may be given in
    parts, one below the other. A part of the weight may have several leading dimensions, which are flattened.

    Parts may be quantised, in different formats and with different orders of inputs: each keeps its bits, and gets the
    sums that a product with it alone has. On the CPU the weight is copied once, from the parts to the final layout.
    While a model loads, threads do that (`PackingThreads`), and `weight` is complete when the model is.

    activation: applied to the sums. With `gated`, the first half of the sums are gates, the second half ups, and the
        result has half as many outputs.
    scale, softcap: factor of the result, then its limit: softcap * tanh(y / softcap) if `softcap` is above 0.
    out_dtype: dtype of the result, by default that of the input. On CUDA it may be float32: sums are not rounded then.
    activations: how the product rounds its input rows for each part (`weft.ops.packing.activations_of`). Raises
        `InputError` if that is not possible.
    """

    def __init__(
        self,
        weight: Matrix | Sequence[Matrix],
        bias: Tensor | Sequence[Tensor] | None = None,
        *,
        activation: Activation | None = None,
        gated: bool = False,
        scale: float = 1.0,
        softcap: float = 0.0,
        out_dtype: torch.dtype | None = None,
        activations: Activations | None = None,
    ) -> None:
        parts = [weight] if isinstance(weight, Tensor | Quantized) else list(weight)
        self.num_inputs = parts[0].shape[-1]
        require(
            all(part.shape[-1] == self.num_inputs for part in parts),
            f"the parts of a weight have one number of inputs, not {[part.shape[-1] for part in parts]}",
        )
        self.num_outputs = outputs_of(parts) // (2 if gated else 1)
        self.bias = bias if isinstance(bias, Tensor | None) else _joined(bias)
        self.epilogue = Epilogue.of(activation, gated, scale, softcap)
        self.out_dtype = out_dtype
        device = parts[0].device
        if device.type == "cpu":
            self.packed = pack_matrix(parts, 2 if gated else 1, activations)
        else:
            activations_of(format_of(parts[0]), device, activations)  # raises
            self.packed = _on_device(parts)

    @property
    def weight(self) -> Tensor:
        """The memory of the packed weight."""
        return self.packed.memory

    def __call__(
        self,
        x: Tensor,
        norm: Norm | None = None,
        *,
        residual: Tensor | None = None,
        out: Tensor | None = None,
        also: Tensor | None = None,
        live: Tensor | None = None,
        added: Added | None = None,
    ) -> Tensor:
        """The product [N, num_outputs] of the weight and `x` [N, in], after `norm` if given: a new tensor or `out`.

        added: the product reads x + added.norm(added.rows) instead of `x`, and then applies `norm`.
        residual: added to the result, has its shape, may be `out`. also: receives a copy of the result. live: int64
        [1], the number of live rows; weft's kernels neither read nor write the others, torch's matmul on CUDA does. All
        last dimensions are contiguous. On CUDA, no unfinished work of the stream may write the weight, because kernels
        read it before earlier kernels end.
        """
        if out is None:
            out = x.new_empty(x.shape[0], self.num_outputs, dtype=self.out_dtype)
        weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        _LINEAR(
            x, *self.packed, self.bias, weight, eps, residual, *self.epilogue, out, also, live,
            *_parts(added, x, residual),
        )  # fmt: skip
        return out


def multiply(
    x: Tensor,
    weight: Tensor,
    parts: Sequence[int],
    orders: Tensor | None,
    num_outputs: int,
    norm: Norm | None,
    live: Tensor | None = None,
) -> Tensor:
    """The product of `Linear` on CUDA, for the fields of a `Packed`."""
    out = x.new_empty(x.shape[0], num_outputs)
    norm_weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
    _LINEAR(x, weight, parts, orders, None, norm_weight, eps, None, *Epilogue(), out, None, live)
    return out


def add_norm(
    x: Tensor, rows: Tensor, norm: Norm, out: Tensor | None = None, live: Tensor | None = None
) -> Tensor:
    """x + norm(rows), both [N, H]: a new tensor or `out`, which may be `x` or `rows`. All last dimensions are
    contiguous. `live` is as in `Linear`."""
    out = x.new_empty(x.shape) if out is None else out
    _ADD_NORM(x, rows, norm.weight, norm.eps, out, live)
    return out


def _parts(
    added: Added | None, x: Tensor, residual: Tensor | None
) -> tuple[Tensor | None, Tensor | None, float, Tensor | None]:
    """The arguments of the operation for `added`."""
    if added is None:
        return None, None, 0.0, None
    rows, total = added.rows, added.total
    require(
        rows.shape == total.shape == x.shape, f"x, rows and total have one shape, not {list(x.shape)}, "
        f"{list(rows.shape)} and {list(total.shape)}",
    )  # fmt: skip
    require(
        not any(total is tensor for tensor in (x, rows, residual)),
        "the total may be neither x nor the added rows nor the residual",
    )
    return rows, added.norm.weight, added.norm.eps, total


def _on_device(parts: Sequence[Matrix]) -> Packed:
    """Store a weight on CUDA: dense parts as one matrix, others in `device_blocks`."""
    dense = [part for part in parts if isinstance(part, Tensor)]
    return Packed(_joined(dense)) if len(dense) == len(parts) else pack_device(parts)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate biases, or weights after flattening all dimensions but the last."""
    flat = [part.flatten(0, -2) if part.dim() > 2 else part for part in parts]
    if len(flat) == 1:
        return flat[0].contiguous()
    if flat[0].is_meta:  # torch would import its compiler to concatenate them
        return flat[0].new_empty(sum(len(part) for part in flat), *flat[0].shape[1:])
    return torch.cat(flat)


def _linear_cpu(
    x: Tensor,
    weight: Tensor,
    parts: Sequence[int],
    orders: Tensor | None,
    bias: Tensor | None,
    norm: Tensor | None,
    eps: float,
    residual: Tensor | None,
    gated: bool,
    function: int,
    slope: float,
    limit: float,
    shift: float,
    scale: float,
    softcap: float,
    out: Tensor,
    also: Tensor | None = None,
    live: Tensor | None = None,
    added: Tensor | None = None,
    added_norm: Tensor | None = None,
    added_eps: float = 0.0,
    total: Tensor | None = None,
) -> None:
    _check(x, norm, residual, out, also, added, added_norm, total)
    kernel = _core.linear_cpu(
        x.data_ptr(), weight.data_ptr(), parts, address(orders), address(bias), address(norm),
        address(residual), out.data_ptr(), address(also), x.shape[0], x.shape[1], out.shape[1], x.stride(0),
        _row_stride(residual), out.stride(0), _row_stride(also), eps, gated, function, slope, limit,
        shift, scale, softcap, torch.get_num_threads(), address(live), address(added),
        address(added_norm), _row_stride(added), added_eps, address(total), _row_stride(total),
    )  # fmt: skip
    run_kernel("gated_linear" if gated else "linear", kernel)


def _row_stride(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.stride(0)


def _check(*tensors: Tensor | None) -> None:
    for tensor in tensors:
        if tensor is not None and (tensor.dtype is not torch.float32 or tensor.stride(-1) != 1):
            require(tensor.dtype is torch.float32, f"on the CPU activations are float32, not {tensor.dtype}")
            require(tensor.shape[-1] <= 1, "the last dimension must be contiguous")


def _linear_cuda(
    x: Tensor,
    weight: Tensor,
    parts: Sequence[int],
    orders: Tensor | None,
    bias: Tensor | None,
    norm: Tensor | None,
    eps: float,
    residual: Tensor | None,
    gated: bool,
    function: int,
    slope: float,
    limit: float,
    shift: float,
    scale: float,
    softcap: float,
    out: Tensor,
    also: Tensor | None = None,
    live: Tensor | None = None,
    added: Tensor | None = None,
    added_norm: Tensor | None = None,
    added_eps: float = 0.0,
    total: Tensor | None = None,
) -> None:
    epilogue = Epilogue(gated, function, slope, limit, shift, scale, softcap)
    matrices = stored_parts(weight, parts, 1, x.shape[1])
    are_few = x.shape[0] <= FEW_ROWS
    # The kernel for few rows norms them itself, and reads them in order.
    if not are_few or orders is not None:
        if added is not None:
            assert added_norm is not None and total is not None
            _add_norm_cuda(x, added, added_norm, added_eps, total, live if are_few else None)
            x = total
        if norm is not None and norm.dtype is x.dtype:
            x = F.rms_norm(x, norm.shape, norm, eps)
        elif norm is not None:
            source, x = x, x.new_empty(x.shape)
            _norm_cuda(source, norm, eps, x)
        norm = added = added_norm = total = None
    inputs = _ordered(x, parts, orders)
    if are_few:
        normed = norm, eps, live, added, added_norm, added_eps, total
        with device_of(x):
            _multiply_few(inputs, matrices, bias, residual, epilogue, out, also, *normed)
        return
    adds = residual is not None and epilogue.is_linear and out.dtype is x.dtype
    sums = out
    if gated or (residual is not None and not adds):
        sums = out.new_empty(x.shape[0], sum(map(num_outputs, matrices)))
    for columns, rows, dense in _widened(matrices, inputs):
        some, target = None if bias is None else bias[columns], sums[:, columns]
        if residual is not None and adds:
            torch.addmm(residual[:, columns], rows, dense.t(), alpha=scale, out=target)
            if some is not None:
                target.add_(some, alpha=scale)
        else:
            _multiply(rows, dense, some, target)
    if not adds and (sums is not out or not epilogue.is_linear or scale != 1):
        with device_of(x):
            triton_kernels("linear_triton").activate(sums, residual, epilogue, out, live=live)
    if also is not None:
        also.copy_(out)


def _ordered(x: Tensor, parts: Sequence[int], orders: Tensor | None) -> list[Tensor]:
    """The rows `x` as each part reads them: in the order of its inputs."""
    if orders is None:
        return [x] * max(1, len(parts_of(parts)))
    ordered = [x.index_select(1, order) for order in orders]
    return [x if part.order < 0 else ordered[part.order] for part in parts_of(parts)]


def _multiply_few(
    inputs: Sequence[Tensor],
    matrices: Sequence[Stored],
    bias: Tensor | None,
    residual: Tensor | None,
    epilogue: Epilogue,
    out: Tensor,
    also: Tensor | None,
    norm: Tensor | None,
    eps: float,
    live: Tensor | None,
    added: Tensor | None,
    added_norm: Tensor | None,
    added_eps: float,
    total: Tensor | None,
) -> None:
    """The product of few rows on CUDA: one kernel for each part, which reads its rows in `inputs`. If gates and ups are
    in several parts, another one activates their sums."""
    kernels = triton_kernels("linear_triton")
    is_whole = len(matrices) == 1 or not epilogue.gated
    sums, first = out, 0
    if not is_whole:
        sums = out.new_empty(len(out), sum(map(num_outputs, matrices)), dtype=torch.float32)
    for x, matrix in zip(inputs, matrices, strict=True):
        columns = slice(first, first + num_outputs(matrix))
        first = columns.stop
        targets: tuple[Tensor | None, ...] = residual, out, also
        if not is_whole:
            targets = None, sums, None
        if len(matrices) > 1:
            targets = tuple(None if target is None else target[:, columns] for target in targets)
        kernels.linear(
            x, matrix, None if bias is None else bias[columns], norm, eps, targets[0],
            epilogue if is_whole else Epilogue(), *targets[1:], live, added, added_norm, added_eps, total,
        )  # fmt: skip
    if not is_whole:
        for target in (also, out):  # in this order, because the residual may be `out`
            if target is not None:
                kernels.activate(sums, residual, epilogue, target, live=live)


def _widened(matrices: Sequence[Stored], inputs: Sequence[Tensor]) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """The outputs of matrices, the rows `inputs` of each, and its numbers in their dtype; of a quantised one at most
    `WIDENED` numbers at a time, in memory that is free again when the iterator goes on."""
    first = 0
    for matrix, rows in zip(matrices, inputs, strict=True):
        count = num_outputs(matrix)
        if isinstance(matrix, Tensor):
            yield slice(first, first + count), rows, matrix.view(count, -1).to(rows.dtype)
        else:
            rows_at_once = max(1, WIDENED // matrix.num_inputs)
            for start in range(0, count, rows_at_once):
                dense = matrix.codes.new_empty(
                    min(rows_at_once, count - start), matrix.num_inputs, dtype=rows.dtype
                )
                with device_of(dense):
                    triton_kernels("blocks_triton").widen(matrix, start, dense)
                yield slice(first + start, first + start + len(dense)), rows, dense
        first += count


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """x @ weight.T + bias, by torch on CUDA."""
    if out.dtype is not x.dtype:
        torch.mm(x, weight.t(), out_dtype=out.dtype, out=out)
        if bias is not None:
            out.add_(bias)
    elif bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


def _norm_cpu(x: Tensor, weight: Tensor, eps: float, out: Tensor, live: Tensor | None = None) -> None:
    _check(x, weight, out)
    kernel = _core.rms_norm_cpu(
        x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1], x.stride(0), out.stride(0), eps,
        address(live),
    )  # fmt: skip
    run_kernel("rms_norm", kernel)


def _norm_cuda(x: Tensor, weight: Tensor, eps: float, out: Tensor, live: Tensor | None = None) -> None:
    with device_of(x):
        triton_kernels("rows_triton").norm(x, weight, eps, out, live=live)


def _add_norm_cpu(
    x: Tensor, rows: Tensor, weight: Tensor, eps: float, out: Tensor, live: Tensor | None = None
) -> None:
    _check(x, rows, weight, out)
    kernel = _core.add_norm_cpu(
        x.data_ptr(), rows.data_ptr(), weight.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1], x.stride(0),
        rows.stride(0), out.stride(0), eps, torch.get_num_threads(), address(live),
    )  # fmt: skip
    run_kernel("add_norm", kernel)


def _add_norm_cuda(
    x: Tensor, rows: Tensor, weight: Tensor, eps: float, out: Tensor, live: Tensor | None = None
) -> None:
    with device_of(x):
        triton_kernels("rows_triton").add_norm(x, rows, weight, eps, out, live=live)


_LINEAR = register(
    "linear(Tensor x, Tensor weight, int[] parts, Tensor? orders, Tensor? bias, Tensor? norm, float eps,"
    " Tensor? residual, bool gated, int function, float slope, float limit, float shift, float scale,"
    " float softcap, Tensor(a!) out, Tensor(b!)? also=None, Tensor? live=None, Tensor? added=None,"
    " Tensor? added_norm=None, float added_eps=0.0, Tensor(c!)? total=None) -> ()",
    cpu=_linear_cpu,
    cuda=_linear_cuda,
)
_NORM = register(
    "rms_norm(Tensor x, Tensor weight, float eps, Tensor(a!) out, Tensor? live=None) -> ()",
    cpu=_norm_cpu,
    cuda=_norm_cuda,
)
_ADD_NORM = register(
    "add_norm(Tensor x, Tensor rows, Tensor weight, float eps, Tensor(a!) out, Tensor? live=None) -> ()",
    cpu=_add_norm_cpu,
    cuda=_add_norm_cuda,
)
