"""What the engine launches, with each drafter and every sampling parameter, behaves alike at capture and at replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.engine.requests import make_request, run
from support.launch_check import check_launched
from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation
from weft.core.logits_processors import LogitsProcessor, ProcessorRows
from weft.core.request import Gather
from weft.engine.runner.prompts import guarded
from weft.runtime import CpuRuntime, cpu
from weft_bench.engine.simulated import simulate_acceptance

SPECULATIONS = {
    "none": Speculation.none(),
    "eagle3": Speculation.eagle3(num_draft_tokens=2),
    "mtp": Speculation.mtp(num_draft_tokens=2),
    "draft_model": Speculation.draft_model(num_draft_tokens=2),
    "ngram": Speculation.ngram(num_draft_tokens={1: 3, 2: 2}),
    "forced+eagle3": Speculation.forced(Speculation.eagle3(num_draft_tokens=2, guide_drafts=True)),
}
EVERYTHING = SamplingParams(
    max_tokens=6,
    min_tokens=3,
    temperature=0.8,
    top_k=40,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.1,
    presence_penalty=0.2,
    frequency_penalty=0.1,
    logit_bias={40: 1.0},
    bad_words=["never"],
    no_repeat_ngram_size=3,
    top_p_decay=0.9,
    top_p_reset_ids=40,
    seed=1,
    logprobs=3,
)


Check = Callable[[set[str]], None]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    """Checks the last launch of each function of these names, all of which must have been launched."""
    launched: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {}
    pinned: list[torch.Tensor] = []
    launch, make_pinned = cpu.Stream.launch, CpuRuntime.pinned

    def record_launch(self: cpu.Stream, fn: Callable[..., None], *args: Any) -> None:
        seen, given = fn, args
        if fn is guarded:
            seen, given = args[1], args[2:]
        launched[getattr(seen, "__qualname__", type(seen).__name__)] = (seen, given)
        launch(self, fn, *args)

    def record_pinned(self: CpuRuntime, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        pinned.append(make_pinned(self, shape, dtype))
        return pinned[-1]

    monkeypatch.setattr(cpu.Stream, "launch", record_launch)
    monkeypatch.setattr(CpuRuntime, "pinned", record_pinned)

    def check_all(expected: set[str]) -> None:
        assert expected <= set(launched)
        for name in expected:
            fn, args = launched[name]
            with torch.inference_mode():
                check_launched(fn, *args, host=[tensor for tensor in pinned if tensor.numel()])

    return check_all


@pytest.mark.parametrize(
    ("speculation", "simulated"), [*((name, None) for name in sorted(SPECULATIONS)), ("eagle3", 1.5)]
)
def test_every_launched_function_keeps_the_rule(
    speculation: str, simulated: float | None, check: Check
) -> None:
    kind: Any = "normalized" if speculation in ("eagle3", "ngram") else "raw"
    engine = EngineConfig(max_batch=2, max_seq_len=64, graphs="none", logprobs=kind)
    with LLM(device="cpu", speculation=SPECULATIONS[speculation], engine=engine) as llm:
        if simulated is not None:
            simulate_acceptance(llm.engine, simulated)
        llm.generate(
            ["Text: one.", "Text: two."], guide=[Guide.regex("[a-z ]{9,}"), None], sampling=EVERYTHING
        )
        run(llm, [make_request(llm, text, SamplingParams(max_tokens=2)) for text in ("One.", "Number two.")])
        expected = {
            "open_slots",
            "write_tables",
            "target_forward",
            "sample_and_verify",
            "note_logprobs",
            "_copy_masks",
            "_apply_masks",
        }
        if llm.engine.parts.drafter is not None:
            expected |= {"draft_forward", "pick_draft"}
        elif llm.engine.parts.has_proposals:
            expected |= {"take_proposals"}
        check(expected)


def test_moves_of_pages_keep_the_rule(check: Check) -> None:
    engine = EngineConfig(
        max_batch=1, max_seq_len=64, page_size=8, num_pages=10, graphs="none", host_cache_bytes=1 << 20
    )
    with LLM(device="cpu", speculation=SPECULATIONS["eagle3"], engine=engine) as llm:
        texts = [f"{word} is the beginning of a text of its own." for word in ("One", "Other", "One")]
        run(llm, [make_request(llm, text, SamplingParams(max_tokens=40, min_tokens=40)) for text in texts])
        usage = llm.engine.kv.usage()
        assert usage.onboarded_pages and usage.offloaded_pages
        check({"move_pages"})


class Favour:
    """A captured logits processor that prefers the token behind the last one, and keeps a count by slot."""

    allows_capture = True

    def __init__(self) -> None:
        self.count = torch.zeros(3, dtype=torch.int64)

    def __call__(self, rows: ProcessorRows, logits_BTV: torch.Tensor, stream: object) -> None:
        self.count.index_add_(0, rows.slots, rows.active.long())
        next_BT1 = (rows.tokens.clamp(min=0) + 1)[..., None] % logits_BTV.shape[2]
        logits_BTV.scatter_add_(2, next_BT1, torch.ones_like(next_BT1, dtype=logits_BTV.dtype))


def test_gathering_and_captured_processors_keep_the_rule(check: Check) -> None:
    names = ("hidden_states.1", "TopKLogits")
    engine = EngineConfig(
        max_batch=2,
        max_seq_len=64,
        graphs="none",
        gather_generation_logits=True,
        additional_outputs=tuple((name, True) for name in names),
    )
    with LLM(device="cpu", speculation=SPECULATIONS["eagle3"], engine=engine) as llm:
        sampling, gather = SamplingParams(max_tokens=6), Gather(True, True, names, names)
        processor = LogitsProcessor("favour", Favour())
        run(llm, [make_request(llm, "Text: one.", sampling, gather=gather, processor=processor)])
        check({"open_slots", "read_outputs", "target_forward", "run_captured", "sample_and_verify"})
