"""Runs that test two kinds of waits: those that report a failure where it happens, and those that leave no work in
flight at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from races.parts import ahead
from races.runs import TEXT
from support.engine.beams import Beams
from support.engine.requests import engine_request, make_request, run
from support.planting import at_every_run
from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation
from weft.config import package_model_path
from weft.core.beam_params import BeamParams
from weft.core.logits_processors import LogitsProcessor
from weft.engine.device.tensors import marked_outputs
from weft.engine.sequence import Sequence
from weft.runtime import CpuRuntime, cpu

EAGLE3 = Speculation.eagle3(num_draft_tokens=2, guide_drafts=True)


def made(speculation: Speculation = EAGLE3, **config: Any) -> LLM:
    """Make an engine of weft-tiny that the run steps itself."""
    settings = {"max_batch": 2, "max_seq_len": 128} | config
    llm = LLM(device="cpu", speculation=speculation, engine=EngineConfig(**settings))
    Breakable.of(llm.engine.parts.model)
    return llm


def asked(llm: LLM, guide: Guide | None = None, max_tokens: int = 8) -> Sequence:
    """Submit a request of `max_tokens` tokens."""
    request = make_request(llm, TEXT, SamplingParams(max_tokens=max_tokens), guide)
    if request.guide is not None:
        request.guide.compiling.result()
    llm.engine.submit(request)
    return request


class Breakable:
    """Replaces a model's forward before a graph captures it. It raises in its next `left` runs."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward, self.left = forward, 0

    @classmethod
    def of(cls, model: Any) -> Breakable:
        """Return the model's wrapper, made at the first call."""
        if not isinstance(model.forward, cls):
            model.forward = cls(model.forward)
        found: Breakable = model.forward
        return found

    def __call__(self, *args: Any) -> Any:
        at_every_run(self._strike)
        return self.forward(*args)

    def _strike(self) -> None:
        if self.left:
            self.left -= 1
            raise ValueError("planted")


@contextmanager
def broken(model: Any, times: int = 1) -> Iterator[None]:
    """Make the model's next forwards raise."""
    forward = Breakable.of(model)
    forward.left = times
    try:
        yield
    finally:
        forward.left = 0


def said(*requests: Sequence) -> list[tuple[str, list[int]]]:
    """Return the errors and token ids of requests."""
    return [(str(r.output.error), r.output.token_ids) for r in requests]


def finish(llm: LLM) -> None:
    while llm.engine.has_work:
        llm.engine.step()


def failed_warm_ups() -> Iterator[Any]:
    """A failure in flight is reported before the next capture, and leaves nothing behind."""
    for graphs in ("one", "split"):
        llm = made(graphs=graphs)
        for _ in ahead():
            first = asked(llm, Guide.regex("[a-z]{20}"))
            while not first.output.token_ids:
                llm.engine.step()
            with broken(llm.engine.parts.model):
                llm.engine.step()
            yield graphs, len(llm.engine.graphs.plans), said(first)
            finish(llm)
        second = asked(llm, Guide.regex("[a-z]{20}"))
        finish(llm)
        yield said(second)
        llm.close()


def dropped_snapshots() -> Iterator[Any]:
    """Iterations in flight take their own snapshots; only a failed iteration's snapshots are dropped."""
    for _ in ahead():
        llm = made(overlap=True)
        # The last iteration misses a dropped snapshot only if no other iteration follows. The lengths vary for that.
        for length in range(5, 10):
            first = asked(llm, Guide.regex("[a-z]{20}"), max_tokens=length)
            while len(first.output.token_ids) < 2:
                llm.engine.step()
            llm.engine.runner.snapshots.drop_pending()
            finish(llm)
            yield said(first)
        llm.close()


def failed_prompts() -> Iterator[Any]:
    """A prefill that fails is reported by the warm-up."""
    for _ in ahead():
        llm = made()
        with broken(llm.engine.parts.model):
            try:
                llm.warm_up()
                yield "nothing was heard"
            except ValueError as error:
                yield str(error)
        llm.close()


def failed_iterations() -> Iterator[Any]:
    """A failed iteration fails the requests that decode in it, but no request in prefill and no later one."""
    settings: list[tuple[dict[str, Any], Guide | None]] = [
        ({"graphs": "split"}, None),
        ({"graphs": "one", "overlap": True}, Guide.regex("[a-z]{20}")),
    ]
    for config, guide in settings:
        llm = made(**config)
        run(llm, [make_request(llm, TEXT, SamplingParams(max_tokens=8), Guide.regex("[a-z]{20}"))])
        finish(llm)
        for _ in ahead():
            first = asked(llm, guide)
            while len(first.output.token_ids) < 2:
                llm.engine.step()
            second = asked(llm, Guide.regex("[a-z]{9}")) if guide is None else None
            with broken(llm.engine.parts.model):
                llm.engine.step()
                second = second or asked(llm, Guide.regex("[a-z]{9}"))
                llm.engine.step()
            third = asked(llm, Guide.regex("[a-z]{20}"))
            finish(llm)
            yield said(first, second, third)
        llm.close()


def failed_beside_a_processor() -> Iterator[Any]:
    """The host waits for a prompt whose logits processor it calls. An earlier failure does not fail that prompt."""

    def look(*_: object) -> None:
        pass

    for _ in ahead():
        llm = made(Speculation.none(), graphs="none")  # a graph would not call the model's forward
        run(llm, [make_request(llm, TEXT, SamplingParams(max_tokens=3))])
        first = asked(llm)
        while len(first.output.token_ids) < 2:
            llm.engine.step()
        second = make_request(
            llm, TEXT, SamplingParams(max_tokens=3), processor=LogitsProcessor("look", look)
        )
        llm.engine.submit(second)
        with broken(llm.engine.parts.model):
            llm.engine.step()
        finish(llm)
        yield said(first, second)
        llm.close()


def failed_twice() -> Iterator[Any]:
    """Two iterations in flight both fail: the second fails only the requests in it."""
    llm = made(overlap=True)
    run(llm, [make_request(llm, TEXT, SamplingParams(max_tokens=8), Guide.regex("[a-z]{20}"))])
    finish(llm)
    for _ in ahead():
        first = asked(llm, Guide.regex("[a-z]{20}"))
        while len(first.output.token_ids) < 2:
            llm.engine.step()
        with broken(llm.engine.parts.model, times=2):
            for _ in range(3):
                llm.engine.step()
        second = asked(llm, Guide.regex("[a-z]{20}"))
        finish(llm)
        yield said(first, second)
    llm.close()


def failed_launches() -> Iterator[Any]:
    """A launch fails behind an iteration that read a part of its prompt and that fails later. The next request does
    not get either error."""
    llm = made(Speculation.none(), prefill_chunk=4, reuse=False)
    run(llm, [make_request(llm, TEXT, SamplingParams(max_tokens=3))])
    finish(llm)
    graphs: Any = llm.engine.graphs
    launch = graphs.run

    def first_part(*args: Any) -> None:
        graphs.run = other_part
        launch(*args)

    def other_part(*_: Any) -> None:
        graphs.run = launch
        raise ValueError("planted in the launch")

    for _ in ahead():
        first = asked(llm)
        graphs.run = first_part
        with broken(llm.engine.parts.model):
            llm.engine.step()
            second = asked(llm)
            llm.engine.step()
        finish(llm)
        yield said(first, second)
    llm.close()


def failed_searches() -> Iterator[Any]:
    """A failure before the capture of beam search leaves nothing behind."""
    for _ in ahead():
        search = Beams(Path(package_model_path()), max_batch=3)
        prompt = search.tokenizer.encode(TEXT)
        one = engine_request(prompt, SamplingParams(max_tokens=4), 0, beam=BeamParams(2))
        search.start(one)
        search.step()
        with broken(search.engine.parts.model):
            search.step()
        search.finish()
        yield said(one)


def vacate(llm: LLM) -> None:
    """Release the snapshots as if a guided request had just ended."""
    runner: Any = llm.engine.runner
    runner.snapshots.holds_ended = True
    runner.snapshots.vacate(is_idle=True)


def ended() -> Iterator[Any]:
    """No work is in flight after an engine was closed or a model was tried."""
    for _ in ahead():
        llm = made()
        seen: list[int] = []
        model, stream = llm.engine.parts.model, CpuRuntime().stream()
        stream.launch(seen.append, 0)
        marked_outputs(CpuRuntime(), stream, model)
        yield seen[:]
        llm.engine.runner.stream.launch(seen.append, 1)
        vacate(llm)
        yield seen[:]
        llm.engine.grammar.stream.hostfunc(seen.append, 2)
        vacate(llm)
        yield seen[:]
        llm.engine.runner.stream.launch(seen.append, 3)
        llm.close()
        yield seen


def told_of_tensors() -> Iterator[Any]:
    """An engine publishes all tensors that it allocates on torch's stream."""
    told, publish = [0], CpuRuntime.publish

    def count(self: CpuRuntime) -> None:
        told[0] += 1

    CpuRuntime.publish = count  # type: ignore[method-assign]
    try:
        with made() as llm:
            yield told[0]
            run(llm, [make_request(llm, TEXT, SamplingParams(max_tokens=3))])
            yield told[0]
            finish(llm)
            marked_outputs(CpuRuntime(), CpuRuntime().stream(), llm.engine.parts.model)
            yield told[0]
        search = Beams(Path(package_model_path()), max_batch=2)
        prompt = search.tokenizer.encode(TEXT)
        search.run([engine_request(prompt, SamplingParams(max_tokens=2), 0, beam=BeamParams(2))])
        yield told[0]
    finally:
        CpuRuntime.publish = publish  # type: ignore[method-assign]
    cpu.synchronize()


FAULTS: list[Callable[[], Iterator[Any]]] = [
    told_of_tensors,
    ended,
    dropped_snapshots,
    failed_prompts,
    failed_warm_ups,
    failed_iterations,
    failed_beside_a_processor,
    failed_twice,
    failed_launches,
    failed_searches,
]
