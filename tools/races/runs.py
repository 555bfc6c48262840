"""Quick runs of all code that orders work.

Each run yields values that must not depend on the order. The schedules run all work as early as allowed, so that a
missing wait changes a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.engine.beams import Beams
from support.engine.requests import engine_request, make_request, run, settle, told
from support.engine.toy import CapturedLoop, EagerLoop, Tables
from support.grammar.grammars import some_guides
from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation
from weft.config import package_model_path
from weft.core.beam_params import BeamParams
from weft.core.logits_processors import LogitsProcessor
from weft.core.request import Gather
from weft.engine.sequence import Sequence
from weft.runtime import CpuRuntime, cpu

SCHEDULES: list[tuple[cpu.ScheduleName, int]] = [
    ("inline", 0),
    ("ahead", 0),
    ("ahead", 1),
    ("ahead", 2),
    ("random", 0),
    ("random", 1),
]
TEXT = "Text: Ada Berg is a painter. Age 31.\nJSON: "
GUIDES = [
    Guide.json(),
    Guide.regex("[a-z]{3}-[0-9]{9}"),
    None,
    Guide.choice(["north by northwest", "northern"]),
]


def schedules() -> Iterator[tuple[str, int]]:
    """Set one schedule after another. All work must have finished."""
    for name, seed in SCHEDULES:
        cpu.synchronize()
        cpu.set_schedule(name, seed)
        yield name, seed
    cpu.synchronize()
    cpu.set_schedule("inline")


def requests(llm: LLM, guides: list[Guide | None] = GUIDES, **fields: Any) -> list[Sequence]:
    """Make requests for each guide, greedy and sampled."""
    found = [
        make_request(
            llm, TEXT[i:], SamplingParams(max_tokens=9 + i, temperature=float(i % 2), seed=i), guide, **fields
        )
        for i, guide in enumerate(guides)
    ]
    for request in found:
        if request.guide is not None:
            request.guide.compiling.result()
    return found


def engine(
    speculation: Speculation, guides: list[Guide | None] = GUIDES, *, given: bool = False, **config: Any
) -> Iterator[Any]:
    """Yield the answers of one engine under each schedule."""
    settings = {"max_batch": 2, "max_seq_len": 128, "overlap": True} | config
    with LLM(device="cpu", speculation=speculation, engine=EngineConfig(**settings)) as llm:
        answers: list[list[int]] = [[] for _ in guides]
        for _ in schedules():
            made = requests(llm, guides)
            for request, answer in zip(made, answers, strict=True):
                request.request = replace(request.request, given=tuple(answer) if given else ())
            run(llm, made)
            yield told(made)
            answers = [[*request.output.token_ids[:4], 5, *request.output.token_ids[5:]] for request in made]
            settle(llm)


def eagle3() -> Iterator[Any]:
    yield from engine(Speculation.eagle3(num_draft_tokens=3, guide_drafts=True))


def eagle3_unguided() -> Iterator[Any]:
    yield from engine(Speculation.eagle3(num_draft_tokens=2, guide_drafts=False), graphs="none")


def forced() -> Iterator[Any]:
    yield from engine(Speculation.forced(Speculation.ngram(num_draft_tokens=4, guide_drafts=True)))


def given() -> Iterator[Any]:
    then = Speculation.eagle3(num_draft_tokens=3, guide_drafts=True)
    yield from engine(Speculation.given(then), [None, GUIDES[0], None], given=True)


def ngram_alone() -> Iterator[Any]:
    yield from engine(Speculation.ngram(num_draft_tokens=3, guide_drafts=True), [None, None, None])


def mtp() -> Iterator[Any]:
    yield from engine(Speculation.mtp(num_draft_tokens=2, guide_drafts=True), graphs="none")


def split() -> Iterator[Any]:
    yield from engine(
        Speculation.forced(Speculation.eagle3(num_draft_tokens=3, guide_drafts=True)),
        graphs="split",
        overlap=False,
    )


def given_split() -> Iterator[Any]:
    yield from engine(
        Speculation.given(num_draft_tokens=3), GUIDES[:2], given=True, graphs="split", overlap=False
    )


def plain() -> Iterator[Any]:
    """No drafts; answers with log-probabilities and logits."""
    config = EngineConfig(max_batch=2, max_seq_len=128, overlap=True, gather_generation_logits=True)
    with LLM(device="cpu", engine=config) as llm:
        for _ in schedules():
            made = []
            for i, guide in enumerate(GUIDES):
                sampling = SamplingParams(max_tokens=9, temperature=1.0, seed=i, logprobs=2)
                made.append(make_request(llm, TEXT, sampling, guide, gather=Gather(generation_logits=True)))
            run(llm, made)
            outputs = [request.output for request in made]
            logits = [o.generation_logits for o in outputs]
            yield told(made), [o.logprobs for o in outputs], [x.tolist() for x in logits if x is not None]
            settle(llm)


def processors() -> Iterator[Any]:
    """Logits processors on the host, which see every draft."""

    def wander(request_id: int, logits: Any, tokens: list[list[int]], *_: object) -> None:
        logits[..., sum(tokens[0]) % 3 :: 3] -= 1.0

    speculation = Speculation.eagle3(num_draft_tokens=2, guide_drafts=True)
    for graphs in ("one", "none"):
        config = EngineConfig(max_batch=2, max_seq_len=128, graphs=graphs)  # type: ignore[arg-type]
        with LLM(device="cpu", speculation=speculation, engine=config) as llm:
            for _ in schedules():
                made = requests(llm, [None, *GUIDES], processor=LogitsProcessor("wander", wander))
                run(llm, made)
                yield told(made)
                settle(llm)


def beams() -> Iterator[Any]:
    """Guided beam searches in a batch with an unguided one, so that a batch has fewer matchers than rows."""
    search = Beams(Path(package_model_path()), max_batch=12)
    guides = [Guide.regex("([0-9][a-f])+"), None, Guide.regex("([a-z]{1,3} ?){4}")]
    for _ in schedules():
        made = [
            engine_request(
                search.tokenizer.encode(TEXT[i:]), SamplingParams(max_tokens=12), 0, beam=BeamParams(4)
            )
            for i in range(3)
        ]
        search.run(made, guides)
        yield [[(h.token_ids, h.log_probs) for h in one.output.hypotheses] for one in made]


def captured_loop() -> Iterator[Any]:
    """A decoding loop outside of weft, over the captured decoder."""
    for _ in schedules():
        json_schema, ab, lower, _, nested, _ = some_guides()
        guides = [ab, None, json_schema, nested, lower]
        for capture, num_drafts in ((True, 3), (False, 3), (True, 0)):
            loop = CapturedLoop(CpuRuntime(), Tables.make(), guides, [3, 0, 4, 2, 1], num_drafts, True)
            yield loop.told([5, 17, 29, 41, 53], capture), loop.decoder.state.num_failed


def eager_loop() -> Iterator[Any]:
    for _ in schedules():
        json_schema, ab, lower, _, nested, _ = some_guides()
        loop = EagerLoop(
            CpuRuntime(), Tables.make(), [ab, None, json_schema, nested, lower], [3, 0, 4, 2, 1], 3, True
        )
        yield loop.run([5, 17, 29, 41, 53]), loop.iterations


RUNS: list[Callable[[], Iterator[Any]]] = [
    captured_loop,
    eagle3,
    forced,
    split,
    given,
    given_split,
    plain,
    ngram_alone,
    eagle3_unguided,
    processors,
    beams,
    mtp,
    eager_loop,
]
