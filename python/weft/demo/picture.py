"""Records a trace of an answer, and plots a few of its iterations with the overlap of grammar and model work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from weft.core import SamplingParams
from weft.demo.breaks import guide_of
from weft.errors import InterfaceError
from weft.llm import LLM
from weft.runtime import cpu
from weft.tiny.records import Record
from weft.trace import Slice, record_on, write_chrome
from weft.trace.plot import plot
from weft.trace.timeline import Overlap, begins_of, overlap

SAMPLING = SamplingParams(max_tokens=192)
SHOWN = 2
"""The number of iterations in the picture."""

INLINE = "both streams in turn, as weft runs them on a CPU"
THREADS = "the same graph with a thread for each stream"
DEVICE = "on the device (its profiler shows no grammar work)"
WHY = (
    "Here the model and the grammar share the CPU's cores, so weft runs them in turn.",
    "On a GPU the grammar works on the CPU while the GPU runs the forward; weft has not run on one yet.",
)
"""Why the streams do not overlap on a CPU, as two sentences."""


def show(console: Console, llm: LLM, record: Record, out: Path) -> None:
    """Record an answer; on a CPU, once under each schedule. Write the trace and the picture, and print the overlaps."""
    console.rule("what ran when", characters="-")
    runs = recorded(llm, record)
    trace, image = out / "demo-trace.json", out / "demo-trace.svg"
    write_chrome(next(iter(runs.values())), trace)
    why = [] if DEVICE in runs else WHY
    for sentence in why:
        console.print(sentence)
    for name, slices in runs.items():
        if name != DEVICE:
            console.print(f"{name[0].upper()}{name[1:]}, over the whole answer: {told(overlap(slices))}")
    console.print(f"\ntrace    {trace}  (open it in Perfetto)", soft_wrap=True, markup=False)
    try:
        plot(
            {titled(name, slices): middle(slices) for name, slices in runs.items()},
            image,
            "\n".join([f"{SHOWN} iterations of an answer, with the time of the grammar in them", *why]),
        )
    except InterfaceError as error:
        console.print(f"no picture: {error}", soft_wrap=True, markup=False)
    else:
        console.print(f"picture  {image}", soft_wrap=True, markup=False)


def recorded(llm: LLM, record: Record) -> dict[str, list[Slice]]:
    """The slices of one answer, by the name of the schedule or device."""
    if llm.runtime.device.type != "cpu":
        return {DEVICE: answered(llm, record)}
    runs = {INLINE: answered(llm, record)}
    with a_thread_for_each_stream():
        runs[THREADS] = answered(llm, record)
    return runs


@contextmanager
def a_thread_for_each_stream() -> Iterator[None]:
    """Run the streams of the CPU runtime concurrently, as on a device, until the `with` block ends."""
    cpu.set_schedule("threads")
    try:
        yield
    finally:
        cpu.set_schedule("inline")


def answered(llm: LLM, record: Record) -> list[Slice]:
    """The slices of one answer."""
    guide = guide_of(record.schema)
    # The first answer warms up: it compiles the guide and captures the graphs.
    llm.generate(record.prompt, guide=guide, sampling=SAMPLING)
    with record_on(llm.runtime) as slices:
        llm.generate(record.prompt, guide=guide, sampling=SAMPLING)
    return slices


def told(found: Overlap) -> str:
    """A sentence about the overlap of the grammar's work with the model's."""
    if found.share < 0.005:
        return f"the grammar's {found.grammar_us:.0f} us lie between the model's kernels"
    return f"{found.share:.0%} of the grammar's {found.grammar_us:.0f} us lie beside the model's work"


def titled(name: str, slices: Sequence[Slice]) -> str:
    """The title of a panel."""
    if name == DEVICE:
        return name
    return f"{name}: {told(overlap(middle(slices)))}"


def middle(slices: Sequence[Slice]) -> list[Slice]:
    """The slices of `SHOWN` iterations from the middle of an answer."""
    starts = [s.begin_us for s in begins_of(slices, "target_forward")]
    first = len(starts) // 2
    begin, end = starts[first], starts[min(first + SHOWN, len(starts) - 1)]
    return [s for s in slices if begin <= s.begin_us < end]
