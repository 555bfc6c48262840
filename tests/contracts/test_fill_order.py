"""What torch fills outside launched functions is published before a stream may use it.

On CUDA torch fills tensors on its own stream, with which weft's streams are not ordered; nothing on the CPU can show
that they are overtaken. So the engine runs here on torch's meta device, where ops compute nothing, and each op that
writes outside `launch` and `use` must be followed by `Runtime.publish` before the next launch, copy or replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from support.engine.requests import engine_request
from weft import EngineConfig, Guide, SamplingParams, Speculation
from weft.client import BuiltEngine, ModelSource, builder
from weft.config import Graphs
from weft.core.beam_params import BeamParams
from weft.core.logits_processors import LogitsProcessor, ProcessorRows
from weft.core.request import Gather
from weft.guided import CapturableGuidedDecoder, GuidedDecoder, GuidedRequest
from weft.guided.grammar_stream import GrammarStream
from weft.guided.state import GuidedShape
from weft.runtime import CpuRuntime, cpu
from weft.runtime.current import CPU, context
from weft.runtime.interface import Stream
from weft_bench.engine import models as engines

META = torch.device("meta")
ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach"}


class Fills(TorchDispatchMode):
    """Collects what is written to the device outside launched functions, until it is published."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.unpublished: list[str] = []
        self.num_fills = 0
        self.is_ordered = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and args[1].device == META != args[0].device:
            return args[0]  # to the host: there are no values
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if func.is_view or func.overloadpacket.__name__ in ALLOCATIONS or self.is_ordered:
            return result
        if any(tensor.device == META for tensor in tensors):
            self.num_fills += 1
            self.unpublished.append(str(func))
        return result

    def check(self) -> None:
        assert self.unpublished == [], "a stream may overtake what torch's own stream has not filled yet"

    @contextmanager
    def ordered(self) -> Iterator[None]:
        before, self.is_ordered = self.is_ordered, True
        try:
            yield
        finally:
            self.is_ordered = before


class MetaStream(cpu.Stream):
    """Device work is run at once, for its ops; host work and events are the CPU's."""

    fills: Fills

    def launch(self, fn: Callable[..., object], *args: Any) -> None:
        self.fills.check()
        with self.fills.ordered(), torch.inference_mode():
            fn(*args)

    def copy(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        self.fills.check()


class MetaRuntime(CpuRuntime):
    device = META

    def __init__(self, fills: Fills) -> None:
        self.fills = fills

    def stream(self, *, high_priority: bool = False) -> MetaStream:
        stream = MetaStream()
        stream.fills = self.fills
        return stream

    @contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        self.fills.check()
        with self.fills.ordered(), torch.inference_mode():
            yield

    @contextmanager
    def capture(self, stream: Stream) -> Iterator[cpu.CpuGraph]:
        assert isinstance(stream, MetaStream)
        captured = cpu.CpuGraph(stream)
        with context(
            CPU, stream.handle
        ):  # without the guard of the CPU's captures: kernels are not recorded here
            captured.graph.capture_begin(capture_error_mode="thread_local")
            yield captured
            captured.graph.capture_end()

    def publish(self) -> None:
        self.fills.unpublished.clear()


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetaRuntime]:
    with Fills() as fills:
        made = MetaRuntime(fills)
        monkeypatch.setattr(builder, "get_runtime", lambda device: made)
        monkeypatch.setattr(engines, "get_runtime", lambda device: made)
        yield made


SPECULATIONS = {
    "none": Speculation.none(),
    "eagle3": Speculation.eagle3(num_draft_tokens=2),
    "draft_model": Speculation.draft_model(num_draft_tokens=2),
    "forced": Speculation.forced(num_draft_tokens=2),
}


@pytest.mark.parametrize("graphs", ["none", "split", "one"])
@pytest.mark.parametrize("speculation", sorted(SPECULATIONS))
def test_an_engine_publishes_what_it_fills(graphs: Graphs, speculation: str, runtime: MetaRuntime) -> None:
    config = EngineConfig(max_batch=2, max_seq_len=64, graphs=graphs)
    built = BuiltEngine.build(ModelSource.of(None), "meta", "float32", SPECULATIONS[speculation], config)
    assert runtime.fills.num_fills > 20
    assert built.compiler is not None
    guide = built.compiler.submit(Guide.regex("[a-z]+"))
    guide.result()
    sampling = SamplingParams(max_tokens=4, logprobs=2, top_k=3, repetition_penalty=1.1)
    requests = [
        engine_request([5, 6, 7], sampling, 1),
        engine_request([5, 6], SamplingParams(max_tokens=3), 2, guide=guide),
    ]
    for request in requests:
        built.engine.submit(request)
    while built.engine.has_work:
        built.engine.step()
    assert requests[0].is_finished and requests[0].output.error is None
    runtime.fills.check()
    built.engine.close()
    built.compiler.close()


class Nothing:
    """A captured logits processor."""

    allows_capture = True

    def __call__(self, rows: ProcessorRows, logits_BTV: torch.Tensor, stream: object) -> None:
        logits_BTV.mul_(1.0)


def test_beams_outputs_and_processors_publish_theirs(runtime: MetaRuntime) -> None:
    config = EngineConfig(
        max_batch=3,
        max_seq_len=64,
        max_beam_width=2,
        graphs="split",
        gather_generation_logits=True,
        additional_outputs=(("hidden_states.1", True),),
    )
    built = BuiltEngine.build(ModelSource.of(None), "meta", "float32", Speculation.none(), config)
    gather = Gather(True, True, ("hidden_states.1",), ("hidden_states.1",))
    sampling = SamplingParams(max_tokens=4)
    beam = engine_request([5, 6, 7], sampling, 1, beam=BeamParams(2))
    requests = [
        beam,
        engine_request([5, 6, 7], sampling, 2, gather=gather),
        engine_request([5, 6], sampling, 3, processor=LogitsProcessor("nothing", Nothing())),
    ]
    for request in requests:
        built.engine.submit(request)
    while built.engine.has_work:
        built.engine.step()
    assert [request.output.error for request in requests] == [None] * 3
    runtime.fills.check()
    built.engine.close()


def test_decoders_for_other_engines_publish_theirs(runtime: MetaRuntime) -> None:
    stream = runtime.stream()
    decoder = GuidedDecoder(runtime, 2, 1, 300, [1], stream=stream)
    runtime.fills.check()
    del decoder
    grammar = GrammarStream(runtime, GuidedShape(2, 1, 300, [1]))
    runtime.fills.check()
    grammar.close()
    captured = CapturableGuidedDecoder(runtime, stream, 2, 1, 300, [1], batch_size=2)
    runtime.fills.check()
    captured.add_batch([GuidedRequest(0, is_new=True)])
    captured.close()


def test_benches_publish_their_random_weights(runtime: MetaRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch.Generator  # there are none on the meta device
    monkeypatch.setattr(torch, "Generator", lambda device="cpu": made())
    monkeypatch.setattr(torch.Tensor, "normal_", lambda self, *_, **__: self.zero_())
    bench = engines.Bench.random("meta", engines.shape_of("small"))
    assert runtime.fills.num_fills > 20
    runtime.fills.check()
    bench.close()


def test_what_is_not_published_is_found(runtime: MetaRuntime) -> None:
    stream, filled = runtime.stream(), torch.zeros(3, device=META)
    with pytest.raises(AssertionError, match="overtake"):
        stream.launch(filled.add_, 1)
    runtime.publish()
    stream.launch(filled.add_, 1)
