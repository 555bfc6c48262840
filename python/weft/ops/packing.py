"""Copies weights into the layout of the CPU's kernels, on several threads while a model loads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import reduce
from itertools import chain
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from weft import _core
from weft.ops.formats import ACTIVATION_DTYPES, DENSE_FORMATS, Activations, Format
from weft.ops.huge_pages import reserved
from weft.ops.library import require
from weft.ops.quantized import Matrix, Quantized, row_sizes

PANEL = 64
MAX_THREADS = 4
"""More threads than this rarely read a file or write memory faster."""

PIECE_BYTES = 4 << 20


class Packed(NamedTuple):
    """A matrix in the layout of the CPU's kernels, or on CUDA as its kernels read it.

    memory: the panels, part by part; on CUDA a dense matrix [out, in], or the tensors of `weft.ops.device_blocks`.
    parts: the numbers of each `PackedPart`, one after another. On CUDA a dense matrix has none.
    orders: int32 [orders, in] on the device of `memory`, the orders of inputs that parts have; or None.
    """

    memory: Tensor
    parts: tuple[int, ...] = ()
    orders: Tensor | None = None


class PackedPart(NamedTuple):
    """A part of a packed matrix: rows of one format.

    num_outputs: of the part. A matrix of gates and ups whose panels alternate is one part with the outputs of one of
        them; on CUDA that part has the outputs of both.
    offset: the first byte of its panels, or of its tensors on CUDA.
    activations: how products round their input rows for this part.
    order: the place in `Packed.orders` of the inputs' order; -1 if they are in order.
    """

    format: Format
    num_outputs: int
    offset: int
    activations: Activations = Activations.FLOAT32
    order: int = -1


def parts_of(numbers: Sequence[int]) -> list[PackedPart]:
    """The parts of a `Packed`, from their numbers."""
    size = len(PackedPart._fields)
    parts = (numbers[begin : begin + size] for begin in range(0, len(numbers), size))
    return [PackedPart(Format(part[0]), part[1], part[2], Activations(part[3]), part[4]) for part in parts]


MAX_PARTS = 4
"""The largest number of parts of a matrix."""


def format_of(matrix: Matrix) -> Format:
    """The format of a matrix. Raises `InputError` for a tensor that is no matrix of weights."""
    if isinstance(matrix, Quantized):
        return matrix.format
    require(matrix.dtype in DENSE_FORMATS, f"weights are float32, float16 or bfloat16, not {matrix.dtype}")
    return DENSE_FORMATS[matrix.dtype]


def activations_of(format: Format, device: torch.device, wanted: Activations | None) -> Activations:
    """How products with a matrix of `format` on `device` round their input rows: as `wanted`; by default as the model
    that loads shall (`PackingThreads`), if it is possible, or else as is fastest.

    Raises `InputError` if `wanted` is not possible."""
    if device.type != "cpu":
        require(wanted in (None, Activations.FLOAT32), "only products on the CPU round their input rows")
        return Activations.FLOAT32
    if wanted is not None:
        require(
            _core.can_multiply(format, wanted),
            f"no kernel for this processor multiplies {format.name} by rows in {wanted.name}",
        )
        return wanted
    packing = _thread.packing
    model_activations = None if packing is None else packing.activations
    if model_activations is not None and _core.can_multiply(format, model_activations):
        chosen = model_activations
    # Without vectors, products of integers are slower than those of float32.
    elif _core.can_multiply(format, Activations.INT8) and _core.instruction_set() != "plain":
        chosen = Activations.INT8
    # Float32 and float16 have more digits than a row in bfloat16.
    elif format is Format.BF16 and _core.has_fast_bfloat16():
        chosen = Activations.BFLOAT16
    else:
        chosen = Activations.FLOAT32
    if packing is not None:
        packing.chosen.add(chosen)
    return chosen


def activations_named(name: str, device: torch.device) -> Activations | None:
    """How the products of a model on `device` round their input rows, for the name that a user gives; None for "auto".
    Raises `InputError` if the device can't."""
    if name == "auto":
        return None
    require(device.type != "cuda", f"activation_dtype is {name!r}, but it is for a CPU; leave it out")
    activations = ACTIVATION_DTYPES[name]
    if activations is Activations.TWO_BFLOAT16:
        require(
            _core.can_multiply(Format.BF16, activations),
            f"activation_dtype is {name!r}, which needs a processor with AMX; give 'float32' or 'bfloat16'",
        )
    return activations


class PackingThreads:
    """While it is open, `pack` returns before it has packed. `__exit__` waits for all copies that the thread started.
    A context manager, for one model.

    activations: how the model's products round their input rows, where a matrix allows it and the model does not say
        otherwise. None: as is fastest.
    chosen: how those products round their input rows, as far as they are packed.

    Torch's own threads would split each copy and wait for each other at its end. That takes many times as long if other
    processes use the processor, because a model has hundreds of copies."""

    def __init__(self, activations: Activations | None = None) -> None:
        self.activations = activations
        self.chosen: set[Activations] = set()
        self._num_threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="weft-pack")
        # Tensors that wait to be packed are in memory.
        self._room = threading.Semaphore(2 * self._num_threads)
        self._copies: list[Future[None]] = []

    def __enter__(self) -> PackingThreads:
        _thread.packing = self
        return self

    def __exit__(self, *error: object) -> None:
        _thread.packing = None
        self._pool.shutdown()
        self.wait()

    def wait(self) -> None:
        """Wait until all copies so far are complete, and raise the first error."""
        for copy in self._copies:
            copy.result()
        self._copies.clear()

    def run(self, copy: Callable[[], None]) -> None:
        """Run `copy` on a thread. Waits while many copies wait."""

        def run() -> None:
            try:
                copy()
            finally:
                self._room.release()

        self._room.acquire()
        self._copies.append(self._pool.submit(run))


class _Thread(threading.local):
    packing: PackingThreads | None = None


_thread = _Thread()


def finish_packing() -> None:
    """Wait until all weights that this thread has packed are complete: before a model that still loads is run."""
    if _thread.packing is not None:
        _thread.packing.wait()


def packed_shape(num_outputs: int, num_inputs: int, num_groups: int, is_tiled: bool) -> tuple[int, ...]:
    """The shape of packed weights: panels of 64 outputs, [P, in, 64], or AMX tiles of 16 pairs of inputs by 16 outputs,
    [P, ceil(in / 32), 4, 16, 32]. `num_outputs` is that of each of `num_groups` groups, whose panels alternate."""
    num_panels = num_groups * -(-num_outputs // PANEL)
    return (num_panels, -(-num_inputs // 32), 4, 16, 32) if is_tiled else (num_panels, num_inputs, PANEL)


def pack(
    parts: Sequence[Tensor],
    num_groups: int,
    is_tiled: bool,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Copy `parts` [..., in], one below the other, to the layout of `packed_shape`, padded with zeros: to a new tensor
    of dtype `dtype`, or to `out`, which holds zeros. The outputs are the leading dimensions of a part, in order.

    The result is complete when `PackingThreads` is closed, if one is open in this thread."""
    dtype = dtype or reduce(torch.promote_types, (part.dtype for part in parts))
    num_outputs = outputs_of(parts) // num_groups
    packed = out
    if packed is None:
        packed = reserved(packed_shape(num_outputs, parts[0].shape[-1], num_groups, is_tiled), dtype)

    def copy(rows: Tensor, panel: int, first: int) -> None:
        sizes, strides = row_sizes(rows)
        kernel = _core.pack_cpu(
            rows.data_ptr(), rows.element_size(), sizes, strides, rows.shape[-1], packed[panel].data_ptr(), first,
            num_groups * packed[panel].numel(), is_tiled,
        )  # fmt: skip
        _start(kernel, rows, packed)

    _copy_all((part.to(dtype) for part in parts), num_outputs, num_groups, copy)
    return packed


def pack_blocks(parts: Sequence[Quantized], num_groups: int, out: Tensor) -> None:
    """Copy `parts` of one format [..., in], one below the other, to the panels of `out`, uint8 that holds zeros. As for
    `pack`, the result may be complete later."""
    first_part = parts[0]
    num_inputs = first_part.num_inputs
    size = _core.panel_bytes(first_part.format, Activations.FLOAT32, num_inputs)

    def copy(rows: Tensor, panel: int, first: int) -> None:
        sizes, strides = row_sizes(rows)
        kernel = _core.pack_blocks_cpu(
            first_part.format, rows.data_ptr(), sizes, strides, num_inputs, out.data_ptr() + panel * size, first,
            num_groups * size,
        )  # fmt: skip
        _start(kernel, rows, out)

    _copy_all((part.data for part in parts), outputs_of(parts) // num_groups, num_groups, copy)


def _copy_all(
    parts: Iterable[Tensor], num_outputs: int, num_groups: int, copy: Callable[[Tensor, int, int], None]
) -> None:
    """Call `copy` with pieces of `parts`, at most three leading dimensions each; with the panel that is the first of
    the piece's group; and with the number that its first output has in this group."""
    first = 0
    for part in parts:
        if part.dim() > 4 or part.stride(-1) != 1 or num_groups > 1:
            part = part.contiguous().flatten(0, -2)
        count = prod(part.shape[:-1])
        for group in range(num_groups):
            begin, end = max(group * num_outputs, first), min((group + 1) * num_outputs, first + count)
            if begin >= end:
                continue
            rows = part if num_groups == 1 else part[begin - first : end - first]
            place = begin - group * num_outputs
            # Threads share a large matrix, so that its file's pages are free before many others are mapped.
            size = max(1, PIECE_BYTES // max(1, rows[0].numel() * rows.element_size()))
            for piece in rows.split(size if size < PANEL or rows.dim() > 2 else size // PANEL * PANEL):
                copy(piece, group, place)
                place += prod(piece.shape[:-1])
        first += count


def outputs_of(parts: Iterable[Matrix]) -> int:
    """The number of outputs of matrices, one below the other."""
    return sum(prod(part.shape[:-1]) for part in parts)


class Orders:
    """The different orders of inputs of some matrices.

    places: for each matrix the place of its order among them, or -1 if its inputs are in order."""

    def __init__(self, matrices: Sequence[Matrix]) -> None:
        self._orders: list[Tensor] = []
        self.places = [self._place(matrix) for matrix in matrices]

    def _place(self, matrix: Matrix) -> int:
        order = matrix.order if isinstance(matrix, Quantized) else None
        if order is None:
            return -1
        for place, other in enumerate(self._orders):
            if torch.equal(order, other):
                return place
        require(
            torch.equal(order.sort().values, torch.arange(len(order), dtype=torch.int32)),
            f"the order of {matrix!r} must have each of its inputs once",
        )
        self._orders.append(order)
        return len(self._orders) - 1

    def on(self, device: torch.device) -> Tensor | None:
        """The orders [orders, in] on a device; None if there are none."""
        return torch.stack(self._orders).to(device) if self._orders else None


class _Run(NamedTuple):
    """Matrices of one format and one order of inputs (`Orders`), one below the other."""

    format: Format
    order: int
    parts: list[Matrix]


def _runs_of(parts: Sequence[Matrix], orders: Sequence[int], num_groups: int) -> list[_Run]:
    """Join neighbours of one format and order. If those of gates and ups differ, or if there are several among the
    gates or ups, each has at least a run of its own."""
    kinds = [(format_of(part), order) for part, order in zip(parts, orders, strict=True)]
    if len({*kinds}) == 1:
        return [_Run(*kinds[0], list(parts))]
    num_outputs, first, runs = outputs_of(parts) // num_groups, 0, list[_Run]()
    for part, kind in zip(parts, kinds, strict=True):
        count = outputs_of([part])
        begins_group = num_groups > 1 and first % num_outputs == 0
        require(
            num_groups == 1 or first // num_outputs == (first + count - 1) // num_outputs,
            "gates and ups of different formats must be different matrices",
        )
        if runs and runs[-1][:2] == kind and not begins_group:
            runs[-1].parts.append(part)
        else:
            runs.append(_Run(*kind, [part]))
        first += count
    require(
        len(runs) <= (MAX_PARTS if num_groups == 1 else num_groups),
        f"one product can't have matrices of the formats {', '.join(run.format.name for run in runs)}, one below the "
        f"other: it has at most {MAX_PARTS} changes of formats or of orders of inputs, and gates or ups have one each; "
        "dequantize some",
    )
    return runs


def pack_matrix(parts: Sequence[Matrix], num_groups: int, activations: Activations | None) -> Packed:
    """Pack matrices [..., in], one below the other, for products that round their input rows by `activations` (see
    `activations_of`). Each matrix keeps its format, but dense ones get a common dtype. The outputs are `num_groups`
    groups: one, or gates and then ups. As for `pack`, the result may be complete later."""
    num_inputs, device = parts[0].shape[-1], parts[0].device
    dtypes = [part.dtype for part in parts if isinstance(part, Tensor)]
    dtype = reduce(torch.promote_types, dtypes, dtypes[0]) if dtypes else None
    if dtype is not None and len(dtypes) == len(parts):
        kind, num_outputs = DENSE_FORMATS[dtype], outputs_of(parts) // num_groups
        chosen = activations_of(kind, device, activations)
        dense = [part for part in parts if isinstance(part, Tensor)]
        memory = pack(dense, num_groups, chosen is not Activations.FLOAT32, dtype)
        return Packed(memory, tuple(PackedPart(kind, num_outputs, 0, chosen)))
    orders = Orders(parts)
    converted = [part.to(dtype) if isinstance(part, Tensor) else part for part in parts]
    runs = _runs_of(converted, orders.places, num_groups)
    # One run has both gates and ups, whose panels alternate.
    groups = num_groups if len(runs) == 1 else 1
    offset, packed = 0, list[PackedPart]()
    for run in runs:
        num_outputs = outputs_of(run.parts) // groups
        chosen = activations_of(run.format, device, activations)
        packed.append(PackedPart(run.format, num_outputs, offset, chosen, run.order))
        offset += part_bytes(run.format, chosen, num_outputs, num_inputs, groups)
    memory = reserved((offset,), torch.uint8)
    for run, part, end in zip(runs, packed, [*(part.offset for part in packed[1:]), offset], strict=True):
        fill_part(run.parts, groups, part.activations, memory[part.offset : end])
    return Packed(memory, tuple(chain.from_iterable(packed)), orders.on(device))


def part_bytes(
    format: Format, activations: Activations, num_outputs: int, num_inputs: int, num_groups: int
) -> int:
    """The bytes of the panels of a part, of `num_groups` groups with `num_outputs` outputs each."""
    panels = -(-num_outputs // PANEL) * num_groups
    return panels * int(_core.panel_bytes(format, activations, num_inputs))


def fill_part(parts: Sequence[Matrix], num_groups: int, activations: Activations, memory: Tensor) -> None:
    """Pack matrices of one format to `memory`, uint8 [part_bytes()] of zeros."""
    blocks = [part for part in parts if isinstance(part, Quantized)]
    if blocks:
        pack_blocks(blocks, num_groups, memory)
        return
    dense = [part for part in parts if isinstance(part, Tensor)]
    is_tiled = activations is not Activations.FLOAT32
    shape = packed_shape(outputs_of(dense) // num_groups, dense[0].shape[-1], num_groups, is_tiled)
    pack(dense, num_groups, is_tiled, dense[0].dtype, memory.view(dense[0].dtype).view(shape))


def pack_each(matrices: Tensor, is_tiled: bool) -> Tensor:
    """Pack each matrix of `matrices` [M, out, in] by itself: [M, *packed_shape]."""
    num_matrices, num_outputs, num_inputs = matrices.shape
    packed = reserved((num_matrices, *packed_shape(num_outputs, num_inputs, 1, is_tiled)), matrices.dtype)
    for matrix, place in zip(matrices, packed, strict=True):
        pack([matrix], 1, is_tiled, matrices.dtype, place)
    return packed


def _start(kernel: _core.Kernel, *tensors: Tensor) -> None:
    def copy(_: tuple[Tensor, ...] = tensors) -> None:  # the tensors live until the kernel has run
        kernel.run()

    if _thread.packing is None:
        copy()
    else:
        _thread.packing.run(copy)
