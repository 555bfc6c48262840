"""Mixtures of experts: for each row, the weighted sum of the MLPs that a router chose for it, in one operation.

    y[n] = sum over j of weights[n, j] * (down[e] @ activation(gate[e] @ x[n], up[e] @ x[n])),   e = index[n, j]

The sum may be added to a residual. Weights of experts without rows are not read; the others are read once for all their
rows. On the CPU, activations are float32 and weights keep their dtype, as in `weft.ops.linear`. A row's result depends
on that row alone, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

import torch
from torch import Tensor

from weft import _core
from weft.ops.activation import Activation
from weft.ops.device_blocks import stored_parts
from weft.ops.device_packing import DeviceStore
from weft.ops.formats import Activations, Format
from weft.ops.huge_pages import reserved
from weft.ops.library import DTYPE_CODES, address, device_of, register, require, run_kernel, triton_kernels
from weft.ops.packing import Packed, PackedPart, activations_of, fill_part, format_of, part_bytes
from weft.ops.quantized import Matrix, Quantized


class Experts:
    """The MLPs of a layer's experts, stored in the layout of their device's kernels.

    gate, up: [E, I, H]; `gate` is None for MLPs without gates. down: [E, H, I]. Each is a tensor, any view of one, or a
        sequence of E matrices, which are read one after another: a lazy sequence need not hold two of them. They may
        be quantised; all gates have one format, as have all ups and all downs.
    gate_bias, up_bias: [E, I], down_bias: [E, H], or None. An MLP with gates has both of the first two, or none.
    first: the index of the first expert. An index outside [first, first + E) adds nothing.
    dtype: of the stored dense weights; by default that of the given ones.
    activations: as in `Linear`.
    """

    def __init__(
        self,
        gate: Matrix | Sequence[Matrix] | None,
        up: Matrix | Sequence[Matrix],
        down: Matrix | Sequence[Matrix],
        activation: Activation,
        *,
        gate_bias: Tensor | None = None,
        up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
        first: int = 0,
        dtype: torch.dtype | None = None,
        activations: Activations | None = None,
    ) -> None:
        require(gate is not None or gate_bias is None, "experts without gates take no gate_bias")
        require(
            gate is None or (gate_bias is None) == (up_bias is None), "give biases of gates and ups, or none"
        )
        require(
            dtype is None or dtype in DTYPE_CODES, f"weights are float32, float16 or bfloat16, not {dtype}"
        )
        require(len(up) > 0, "there must be at least one expert")
        self.activation, self.gated, self.first = activation, gate is not None, first
        ups = [up] if gate is None else [gate, up]
        self.up, (self.inner, self.num_inputs) = _packed(ups, dtype, activations)
        self.down, (self.num_outputs, inner) = _packed([down], dtype, activations)
        self.num_experts = len(up)
        require(
            inner == self.inner and len(down) == self.num_experts,
            f"{len(down)} down projections of {inner} inputs do not fit {self.num_experts} up projections of "
            f"{self.inner} outputs",
        )
        # The kernels add biases to sums in float32.
        self.up_bias = _joined(gate_bias, up_bias)
        self.down_bias = None if down_bias is None else down_bias.float().contiguous()

    @property
    def parameters_of_one(self) -> int:
        """The number of parameters of an expert."""
        ups = self.inner * (2 if self.gated else 1)
        biases = ups * (self.up_bias is not None) + self.num_outputs * (self.down_bias is not None)
        return ups * self.num_inputs + self.num_outputs * self.inner + biases

    def __call__(
        self,
        x: Tensor,
        index: Tensor,
        weights: Tensor,
        live: Tensor | None = None,
        out: Tensor | None = None,
        *,
        residual: Tensor | None = None,
    ) -> Tensor:
        """The results [N, H] for `x` [N, H]: a new tensor or `out`, which is not `x`.

        index: int64 [N, k], the experts of each row. weights: float32 [N, k].
        live: int64 [1], the number of live rows; the others are neither read nor written. residual: [N, H], added to
        the sum; it may be `out`. The last dimensions are contiguous.
        """
        if out is None:
            out = x.new_empty(x.shape[0], self.num_outputs)
        require(x.shape[-1] == self.num_inputs, f"x must be [N, {self.num_inputs}], not {list(x.shape)}")
        act = self.activation
        _EXPERTS(
            x, index, weights, self.up.memory, self.up.parts, self.down.memory, self.down.parts, self.up_bias,
            self.down_bias, self.num_experts, self.inner, self.gated, int(act.function), act.slope, act.limit,
            act.shift, out, live, residual, self.first,
        )  # fmt: skip
        return out


def _joined(gate: Tensor | None, up: Tensor | None) -> Tensor | None:
    """The biases of gates and ups [E, I], side by side in float32. `gate` is None for MLPs without gates."""
    if gate is None or up is None:
        return None if up is None else up.float().contiguous()
    joined = up.new_empty(len(up), gate.shape[1] + up.shape[1], dtype=torch.float32)
    if not joined.is_meta:  # torch would import its compiler to concatenate
        torch.cat((gate.float(), up.float()), 1, out=joined)
    return joined


def _packed(
    sequences: Sequence[Matrix | Sequence[Matrix]], dtype: torch.dtype | None, wanted: Activations | None
) -> tuple[Packed, tuple[int, int]]:
    """Pack the matrices of all experts into one memory, expert by expert. `sequences` are gates and ups, or one of
    them. Returns the packed matrices and the shape of one."""
    store: _Store | DeviceStore | None = None
    for expert in range(len(sequences[0])):
        matrices = [_stored(matrices[expert], dtype) for matrices in sequences]
        if store is None:
            num_outputs, num_inputs = matrices[0].shape
            store = _store_for(len(sequences[0]), matrices, wanted)
        require(
            all(matrix.shape == (num_outputs, num_inputs) for matrix in matrices),
            f"the matrices of expert {expert} must be {[num_outputs, num_inputs]}, not "
            f"{[list(m.shape) for m in matrices]}",
        )
        require(
            not any(isinstance(matrix, Quantized) and matrix.order is not None for matrix in matrices),
            f"the inputs of the matrices of expert {expert} are in an order of their own; dequantize those of all",
        )
        store.put(expert, matrices)
    assert store is not None
    return store.packed, (num_outputs, num_inputs)


def _store_for(count: int, first: Sequence[Matrix], wanted: Activations | None) -> _Store | DeviceStore:
    if first[0].device.type != "cpu" and any(isinstance(matrix, Quantized) for matrix in first):
        return DeviceStore(count, first)
    return _Store(count, first, wanted)


def _stored(matrix: Matrix, dtype: torch.dtype | None) -> Matrix:
    """A matrix as it is stored: a dense one in `dtype`, if that is given."""
    return matrix.to(dtype) if dtype is not None and isinstance(matrix, Tensor) else matrix


class _Store:
    """Memory for the matrices of `count` experts, each with matrices like `first`."""

    def __init__(self, count: int, first: Sequence[Matrix], wanted: Activations | None) -> None:
        num_outputs, num_inputs = first[0].shape
        device = first[0].device
        self.formats = [format_of(matrix) for matrix in first]
        self.dtypes = [matrix.dtype if isinstance(matrix, Tensor) else None for matrix in first]
        chosen = [activations_of(kind, device, wanted) for kind in self.formats]
        if device.type != "cpu":
            dtype = next(matrix.dtype for matrix in first if isinstance(matrix, Tensor))
            sizes = (count, len(first) * num_outputs, num_inputs)
            self.packed = Packed(torch.empty(sizes, dtype=dtype, device=device))
            return
        # Matrices of one format are one part, whose panels alternate.
        kinds = self.formats[:1] if len({*self.formats}) == 1 else self.formats
        self.groups = len(first) // len(kinds)
        offsets, self.parts = [0], list[PackedPart]()
        for kind, activations in zip(kinds, chosen, strict=False):
            self.parts.append(PackedPart(kind, num_outputs, offsets[-1], activations))
            size = part_bytes(kind, activations, num_outputs, num_inputs, self.groups)
            offsets.append(offsets[-1] + count * size)
        memory = reserved((offsets[-1],), torch.uint8)
        self.memory = [memory[begin:end].view(count, -1) for begin, end in pairwise(offsets)]
        self.packed = Packed(memory, tuple(chain.from_iterable(self.parts)))

    def put(self, expert: int, matrices: Sequence[Matrix]) -> None:
        """Copy the matrices of an expert, which may be complete later (`PackingThreads`)."""
        memory = self.packed.memory
        matrices = [_stored(matrix, dtype) for matrix, dtype in zip(matrices, self.dtypes, strict=True)]
        formats = [format_of(matrix) for matrix in matrices]
        require(
            formats == self.formats,
            f"the matrices of expert {expert} are in {_names(formats)}, those of the first in "
            f"{_names(self.formats)}; convert them to one dtype",
        )
        if memory.device.type != "cpu":
            if not memory.is_meta:  # torch would import its compiler to concatenate
                dense = [matrix.to(memory.dtype) for matrix in matrices if isinstance(matrix, Tensor)]
                torch.cat(dense, out=memory[expert])
            return
        for number, (part, place) in enumerate(zip(self.parts, self.memory, strict=True)):
            these = matrices if self.groups > 1 else matrices[number : number + 1]
            fill_part(these, self.groups, part.activations, place[expert])


def _names(formats: Sequence[Format]) -> str:
    return " and ".join(kind.name for kind in formats)


def _experts_cpu(
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    up: Tensor,
    up_parts: Sequence[int],
    down: Tensor,
    down_parts: Sequence[int],
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    num_experts: int,
    inner: int,
    gated: bool,
    function: int,
    slope: float,
    limit: float,
    shift: float,
    out: Tensor,
    live: Tensor | None = None,
    residual: Tensor | None = None,
    first: int = 0,
) -> None:
    require(x.dtype is out.dtype is torch.float32, f"on the CPU activations are float32, not {x.dtype}")
    _check(x, index, weights, out, residual)
    kernel = _core.experts_cpu(
        x.data_ptr(), index.data_ptr(), weights.data_ptr(), out.data_ptr(), up.data_ptr(), up_parts,
        down.data_ptr(), down_parts, address(up_bias), address(down_bias), gated, function, slope,
        limit, shift, x.shape[0], x.shape[1], inner, num_experts, index.shape[1], x.stride(0), out.stride(0),
        torch.get_num_threads(), address(live), address(residual), 0 if residual is None else residual.stride(0),
        first,
    )  # fmt: skip
    run_kernel("experts", kernel)


def _check(x: Tensor, index: Tensor, weights: Tensor, out: Tensor, residual: Tensor | None) -> None:
    require(index.dtype is torch.int64, f"indices of experts are int64, not {index.dtype}")
    require(weights.dtype is torch.float32, f"weights of experts are float32, not {weights.dtype}")
    require(
        index.shape == weights.shape and index.shape[0] == x.shape[0],
        f"{list(x.shape)} rows need indices and weights [{x.shape[0]}, k], not {list(index.shape)} and "
        f"{list(weights.shape)}",
    )
    require(index.shape[1] > 0, "a row needs at least one expert")
    require(index.is_contiguous() and weights.is_contiguous(), "indices and weights must be contiguous")
    require(x.stride(-1) == 1 and out.stride(-1) == 1, "the last dimension must be contiguous")
    if residual is not None:
        require(
            residual.dtype is out.dtype and residual.shape == out.shape and residual.stride(-1) == 1,
            f"residual must be {out.dtype} {list(out.shape)} with contiguous rows, not {residual.dtype} "
            f"{list(residual.shape)}",
        )


def _experts_cuda(
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    up: Tensor,
    up_parts: Sequence[int],
    down: Tensor,
    down_parts: Sequence[int],
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    num_experts: int,
    inner: int,
    gated: bool,
    function: int,
    slope: float,
    limit: float,
    shift: float,
    out: Tensor,
    live: Tensor | None = None,
    residual: Tensor | None = None,
    first: int = 0,
) -> None:
    dense = [memory.dtype for memory, parts in ((up, up_parts), (down, down_parts)) if not parts]
    require(
        all(x.dtype is out.dtype is dtype for dtype in (*dense, out.dtype)),
        f"activations on CUDA have the weights' dtype, {[*dense, out.dtype][0]}, not {x.dtype}",
    )
    _check(x, index, weights, out, residual)
    with device_of(x):
        triton_kernels("experts_triton").experts(
            x,
            index - first if first else index,
            weights,
            stored_parts(up, up_parts, num_experts, x.shape[1]),
            stored_parts(down, down_parts, num_experts, inner),
            up_bias,
            down_bias,
            gated,
            function,
            slope,
            limit,
            shift,
            out,
            live,
            residual,
        )


_EXPERTS = register(
    "experts(Tensor x, Tensor index, Tensor weights, Tensor up, int[] up_parts, Tensor down,"
    " int[] down_parts, Tensor? up_bias, Tensor? down_bias, int num_experts, int inner,"
    " bool gated, int function, float slope, float limit, float shift, Tensor(a!) out, Tensor? live=None,"
    " Tensor? residual=None, int first=0) -> ()",
    cpu=_experts_cpu,
    cuda=_experts_cuda,
)
