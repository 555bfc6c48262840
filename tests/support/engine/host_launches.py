"""Counts the launches of the host on CUDA without a GPU: an engine runs on fake tensors, and its streams count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from support.engine.fake_weights import EmptyWeights
from support.engine.nodes import (
    CountingRuntime,
    CountingStream,
    Nodes,
    no_offsets,
    real_host_memory,
)
from support.kernels.launches import Launch, launches
from weft.config import EngineConfig, Speculation
from weft.core import SamplingParams
from weft.core.request import Request
from weft.engine.build import build_engine
from weft.engine.engine import Engine
from weft.engine.sequence import Sequence
from weft.models import eagle3_head
from weft.models.base import PagedKV
from weft.models.eagle3_config import Eagle3Config
from weft.models.eagle3_head import Eagle3Head
from weft.models.llama import Llama
from weft.spec.eagle3 import Eagle3
from weft.spec.load import Drafting
from weft_bench.engine.models import Shape


class _RealHost(TorchDispatchMode):
    """Runs operations on host tensors alone for real, although a `FakeTensorMode` is active."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(_is_on_device(leaf) for leaf in tree_leaves((args, kwargs))):
            with unset_fake_temporarily():  # type: ignore[no-untyped-call]
                return func(*args, **kwargs)
        mode = detect_fake_mode()
        assert isinstance(mode, FakeTensorMode)

        def faked(value: Any) -> Any:
            is_real = isinstance(value, Tensor) and not isinstance(value, FakeTensor)
            return mode.from_tensor(value) if is_real else value

        args, kwargs = tree_map(faked, (args, kwargs))
        return func(*args, **kwargs)


def _is_on_device(value: Any) -> bool:
    return isinstance(value, FakeTensor) or (isinstance(value, torch.device) and value.type != "cpu")


class _Event:
    """An event of work that is always done."""

    handle = 0

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...


class _Stream(CountingStream):
    """A stream whose work is done at once. It also counts launches of graphs."""

    num_graphs = 0

    def synchronize(self) -> None: ...


class _Graph:
    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    def replay(self) -> None:
        self._stream.num_graphs += 1

    def close(self) -> None: ...


class _Runtime(CountingRuntime):
    """A runtime with the rest of an engine's needs. The launches of a capture are nodes, and do not count."""

    def __init__(self, found: list[Launch]) -> None:
        super().__init__(found)
        self.streams: list[_Stream] = []

    def stream(self, *, high_priority: bool = False) -> _Stream:
        self.streams.append(_Stream(self._found))
        return self.streams[-1]

    def event(self) -> _Event:
        return _Event()

    @contextmanager
    def capture(self, stream: _Stream) -> Iterator[_Graph]:
        counted = [each.nodes for each in self.streams]
        for each in self.streams:
            each.nodes = Nodes()
        yield _Graph(stream)
        for each, nodes in zip(self.streams, counted, strict=True):
            each.nodes = nodes

    def clear(self) -> None:
        for each in self.streams:
            each.nodes, each.num_graphs = Nodes(), 0

    def prepare_polling(self) -> str:
        return "there is no device"

    def memory(self) -> tuple[int, int]:
        return 0, 0

    def free_memory(self) -> int:
        return 0

    def synchronize(self) -> None: ...
    def check(self) -> None: ...


def prompt_launches(
    shape: Shape, num_tokens: int, step_tokens: int | None, num_drafts: int
) -> dict[str, int]:
    """Count the launches of the host for a prompt of `num_tokens` tokens up to its first token, after a warm-up, by
    kind. With `num_drafts`, an EAGLE3 head reads the prompt too.

    step_tokens: `max_num_tokens`, the limit of a step; None: the default.
    """
    with launches() as found, real_host_memory(), _RealHost():
        runtime = _Runtime(found)
        engine = _engine(runtime, shape, num_tokens, step_tokens, num_drafts)
        engine.warm_up()
        runtime.clear()
        sequence = Sequence(Request([5] * num_tokens, SamplingParams(max_tokens=1)), 0, None)
        engine.submit(sequence)
        steps = 0
        while not sequence.output.token_ids:
            if sequence.output.error is not None:
                raise sequence.output.error
            engine.step()
            steps += 1
        streams = runtime.streams
    return {
        "steps": steps,
        "kernels": sum(stream.nodes.num_kernels for stream in streams),
        "copies": sum(stream.nodes.copies for stream in streams),
        "host_functions": sum(stream.nodes.host_functions for stream in streams),
        "graphs": sum(stream.num_graphs for stream in streams),
    }


def _engine(runtime: Any, shape: Shape, num_tokens: int, step_tokens: int | None, num_drafts: int) -> Engine:
    config = shape.config(torch.bfloat16, shape.vocab)
    weights = EmptyWeights(config)
    model = Llama(config, weights)
    settings = EngineConfig(max_batch=8, max_seq_len=num_tokens + 64, max_num_tokens=step_tokens)
    resolved = settings.resolved(config.max_position_embeddings, num_drafts, "cuda")
    drafting = Drafting(Speculation.none())
    if num_drafts:
        aux = (2, shape.layers // 2, shape.layers - 3)
        with patch.object(eagle3_head, "_take_d2t", no_offsets):
            sizes = aux, shape.hidden, shape.draft_vocab or shape.vocab
            head = Eagle3Head(Eagle3Config(config, *sizes), weights, model)
        drafter = Eagle3(head, head.allocate_kv(resolved.num_pages, resolved.page_size))
        drafting = Drafting(Speculation.eagle3(num_draft_tokens=num_drafts), drafter)
    kv = PagedKV.for_model(model, resolved.num_pages, resolved.page_size)
    return build_engine(runtime, model, kv, drafting, [2], resolved)
