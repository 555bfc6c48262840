"""Counts the nodes of an iteration on CUDA without a GPU. The step runs on fake tensors, and its launches are
recorded. Operations in Triton and torch are followed down to their kernels; those in CUDA C++ are listed here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from support.engine.fake_weights import EmptyWeights
from support.kernels.launches import Launch
from weft.engine.device.state import DecodeParts, SlotState
from weft.guided.grammar_stream import GrammarStream
from weft.models import eagle3_head
from weft.models.base import PagedKV
from weft.models.eagle3_config import Eagle3Config
from weft.models.eagle3_head import Eagle3Head
from weft.models.llama import Llama
from weft.ops.library import cuda_operations
from weft.spec.recurrent import RecurrentDrafter
from weft_bench.engine.models import Shape

IN_TRITON: dict[str, Callable[..., Any]] = {
    name: cuda_operations[name]
    for module, names in {
        "attention": ("attend",),
        "experts": ("experts",),
        "gates": ("gated_norm",),
        "latent": ("latent_queries", "latent_values"),
        "linear": ("linear", "rms_norm", "add_norm"),
        "recurrence": ("convolve", "recur"),
        "routing": ("choose",),
        "rows": ("embed", "join_norms", "take_rows"),
    }.items()
    if import_module(f"weft.ops.{module}")  # which registers them
    for name in names
}
IN_CUDA = {  # csrc/kernels/sampling/*.cu, csrc/kernels/mask/*.cu
    "sample_slots_": ("sample_rows",),
    "pick_drafts_": ("sample_rows",),
    "advance_slots_": ("advance",),
    "keep_logits_": ("keep",),
    "open_slots_": ("open_slots",),
    "read_slots_": ("read_slots",),
    "take_proposals_": ("take_proposals",),
    "apply_slot_masks_": ("mask",),
    "copy_slot_masks": ("copy_masks",),
    "copy_rows_": ("torch copy_",),
}


class Nodes:
    """The launches of one stream, by kind: kernels by name, copies and host functions."""

    def __init__(self) -> None:
        self.kernels: Counter[str] = Counter()
        self.copies = self.host_functions = 0

    @property
    def num_kernels(self) -> int:
        return self.kernels.total()


class _Watch(TorchDispatchMode):
    """Counts the kernels that operations launch."""

    def __init__(self, nodes: Nodes, found: list[Launch]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._nodes, self._found = nodes, found
        self._seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = func.name().partition("::")
        name = name.partition(".")[0]
        if space == "weft" and name in IN_TRITON:
            self._seen = max(self._seen, len(self._found))
            with self:
                IN_TRITON[name](*args)
            # One operation may call another, whose launches are counted by then.
            self._nodes.kernels.update(launch.name for launch in self._found[self._seen :])
            self._seen = len(self._found)
            return None
        result = func(*args, **(kwargs or {}))
        if space == "weft":
            self._nodes.kernels.update(IN_CUDA[name])
        elif not func.is_view and not name.startswith(("empty", "new_empty", "detach")) and space != "prim":
            if name == "copy_" and args[0].is_contiguous() and args[1].is_contiguous():
                self._nodes.copies += 1
            else:
                self._nodes.kernels[f"torch {name}"] += 1
        return result


class CountingStream:
    """A stream that counts its launches."""

    handle = 0

    def __init__(self, found: list[Launch]) -> None:
        self.nodes, self._found = Nodes(), found

    def launch(self, fn: Callable[..., object], *args: Any) -> None:
        with _Watch(self.nodes, self._found):
            fn(*args)

    def hostfunc(self, task: object, *args: Any) -> None:
        self.nodes.host_functions += 1

    def copy(self, dst: Tensor, src: Tensor) -> None:
        self.nodes.copies += 1

    def record(self, event: object) -> None: ...
    def wait(self, event: object) -> None: ...


@contextmanager
def real_host_memory() -> Iterator[None]:
    """Let `Tensor.numpy` return a host tensor's real memory although a `FakeTensorMode` is active."""
    numpy = Tensor.numpy

    def unfaked(tensor: Tensor, *, force: bool = False) -> Any:
        with unset_fake_temporarily():  # type: ignore[no-untyped-call]
            return numpy(tensor, force=force)

    with patch.object(Tensor, "numpy", unfaked):
        yield


class CountingRuntime:
    """A runtime whose streams count their launches."""

    device = torch.device("cuda")

    def __init__(self, found: list[Launch]) -> None:
        self._found = found

    def stream(self, *, high_priority: bool = False) -> CountingStream:
        return CountingStream(self._found)

    def event(self) -> object:
        return object()

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        with unset_fake_temporarily():  # type: ignore[no-untyped-call]
            return torch.zeros(shape, dtype=dtype)

    def publish(self) -> None: ...


def no_offsets(weights: object, start: str, draft_vocab: int, vocab: int) -> Tensor:
    return torch.zeros(draft_vocab, dtype=torch.int64, device="cuda")


def fake_parts(shape: Shape, grammar: GrammarStream, num_drafts: int, batch: int) -> DecodeParts:
    config = shape.config(torch.bfloat16, shape.vocab)
    weights = EmptyWeights(config)
    model = Llama(config, weights)
    pages = 64 * batch + 1
    drafter = None
    if num_drafts:
        aux = (2, shape.layers // 2, shape.layers - 3)
        with patch.object(eagle3_head, "_take_d2t", no_offsets):
            sizes = aux, shape.hidden, shape.draft_vocab or shape.vocab
            head = Eagle3Head(Eagle3Config(config, *sizes), weights, model)
        drafter = RecurrentDrafter(head, head.allocate_kv(pages, 16))
    state = SlotState(grammar, 256, 4096)
    return DecodeParts(model, PagedKV.for_model(model, pages, 16), drafter, state, False, num_drafts)
