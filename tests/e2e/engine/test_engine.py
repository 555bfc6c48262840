"""Captured equals eager equals a plain loop of transformers and xgrammar, token for token."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import Tensor

from support.engine.oracle import assert_same
from support.engine.references import MAX_TOKENS, Cached, Checkpoint, make_guide
from support.engine.requests import Told, settle, told
from support.grammar.guides import GUIDES
from support.products import pairwise
from weft import LLM, EngineConfig, Output, SamplingParams, Speculation
from weft.guided import grammar_stream
from weft.guided.grammar_stream import GrammarStream
from weft.runtime import cpu
from weft.runtime.interface import Stream

SPECULATIONS = {
    "plain": Speculation.none(),
    "eagle3": Speculation.eagle3(num_draft_tokens=3),
    "eagle3-1": Speculation.eagle3(num_draft_tokens=1),
    "eagle3-8": Speculation.eagle3(num_draft_tokens=8),
    "eagle3-unguided": Speculation.eagle3(num_draft_tokens=3, guide_drafts=False),
}
GREEDY = SamplingParams(max_tokens=MAX_TOKENS)


@pytest.fixture
def make() -> Iterator[Callable[..., LLM]]:
    """Makes LLMs and closes them."""
    made: list[LLM] = []

    def build(checkpoint: Checkpoint, speculation: str = "plain", **engine: Any) -> LLM:
        engine.setdefault("max_seq_len", 512)
        llm = LLM(
            checkpoint.path,
            device="cpu",
            speculation=SPECULATIONS[speculation],
            engine=EngineConfig(kv_cache_dtype="float32", **engine),
        )
        made.append(llm)
        return llm

    yield build
    for llm in made:
        llm.close()


def mixed(count: int) -> list[tuple[int, bool]]:
    """Indices into GUIDES, each with whether its guide is used: every third row goes without."""
    return [(i, i % 3 != 2) for i in range(count)]


def run(llm: LLM, prompts: list[str], rows: list[tuple[int, bool]]) -> list[Output]:
    guides = [make_guide(GUIDES[i]) if guided else None for i, guided in rows]
    outputs: list[Output] = llm.generate([prompts[i] for i, _ in rows], guide=guides, sampling=GREEDY)
    return outputs


def check(outputs: list[Output], rows: list[tuple[int, bool]], references: Cached) -> None:
    for output, (i, guided) in zip(outputs, rows, strict=True):
        assert output.error is None, f"guide {GUIDES[i]}: {output.error}"
        assert_same(output.token_ids, references(i, guided), f"guide {i} {GUIDES[i] if guided else None}")


@pairwise
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("speculation", ["plain", "eagle3"])
@pytest.mark.parametrize("batch", [1, 8])
def test_every_guide_equals_the_reference(
    make: Any,
    tiny: Checkpoint,
    prompts: list[str],
    tiny_references: Cached,
    speculation: str,
    batch: int,
    part: int,
) -> None:
    llm = make(tiny, speculation, max_batch=batch)
    rows = [(i, True) for i in range(part, len(GUIDES), 2)]
    check(run(llm, prompts, rows), rows, tiny_references)
    assert llm.num_graph_replays == llm.num_iterations > 0


@pairwise
@pytest.mark.parametrize("speculation", sorted(SPECULATIONS))
@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("graphs", ["one", "none"])
def test_mixed_batches_equal_the_reference(
    make: Any,
    tiny: Checkpoint,
    prompts: list[str],
    tiny_references: Cached,
    speculation: str,
    batch: int,
    graphs: str,
) -> None:
    llm = make(tiny, speculation, max_batch=batch, graphs=graphs)
    rows = random.Random(batch).sample(mixed(len(GUIDES)), 12)
    check(run(llm, prompts, rows), rows, tiny_references)


@pairwise
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("speculation", ["plain", "eagle3"])
def test_random_checkpoints_equal_the_reference(
    make: Any, random_checkpoint: Checkpoint, prompts: list[str], speculation: str, part: int
) -> None:
    llm = make(random_checkpoint, speculation, max_batch=4)
    rows = mixed(len(GUIDES))[::5][part::2]
    for output, (i, guided) in zip(run(llm, prompts, rows), rows, strict=True):
        assert output.error is None
        reference = random_checkpoint.reference(prompts[i], GUIDES[i] if guided else None)
        assert_same(output.token_ids, reference, f"{random_checkpoint.path.name}, guide {i}")


def test_prompts_read_in_chunks(
    make: Any, tiny: Checkpoint, prompts: list[str], tiny_references: Cached
) -> None:
    rows = mixed(9)
    for chunk in (1, 7, 64):
        llm = make(tiny, "eagle3", max_batch=3, prefill_chunk=chunk)
        check(run(llm, prompts, rows), rows, tiny_references)


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_few_pages_make_requests_wait(
    make: Any, tiny: Checkpoint, prompts: list[str], tiny_references: Cached, page_size: int
) -> None:
    pages = 2 * EngineConfig(page_size=page_size).pages_for(300, 3)
    llm = make(tiny, "eagle3", max_batch=8, page_size=page_size, num_pages=pages)
    rows = mixed(12)
    check(run(llm, prompts, rows), rows, tiny_references)


def test_a_seed_decides_the_text(make: Any, tiny: Checkpoint, prompts: list[str]) -> None:
    """Alone or in a batch, with any drafter, captured or not."""
    rows = mixed(8)
    texts = []
    for speculation, batch, graphs in [
        ("plain", 1, "one"),
        ("plain", 8, "none"),
        ("eagle3", 1, "one"),
        ("eagle3", 8, "one"),
        ("eagle3-8", 3, "one"),
        ("eagle3-unguided", 5, "none"),
    ]:
        llm = make(tiny, speculation, max_batch=batch, graphs=graphs)
        outputs = llm.generate(
            [prompts[i] for i, _ in rows],
            guide=[make_guide(GUIDES[i]) if guided else None for i, guided in rows],
            sampling=[SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0, seed=i) for i, _ in rows],
        )
        texts.append([output.token_ids for output in outputs])
    for other in texts[1:]:
        assert other == texts[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_random_schedules_give_the_same_answers(
    make: Any, tiny: Checkpoint, prompts: list[str], schedules: Callable[..., None]
) -> None:
    """200 seeds of every legal order, with the host running ahead, over a mixed batch."""
    llm = make(tiny, "eagle3", max_batch=2)
    rows = [(0, True), (3, "split"), (2, False)]
    sampling = SamplingParams(max_tokens=10)
    guides = [make_guide(GUIDES[i]) if guided else None for i, guided in rows]

    def answers() -> Told:
        settle(llm)
        return told(llm.generate([prompts[i][-60:] for i, _ in rows], guide=guides, sampling=sampling))

    expected = answers()
    for seed in range(200):
        settle(llm)
        schedules("random" if seed % 4 else "ahead", seed)
        assert answers() == expected, f"seed {seed}"
    settle(llm)


def test_threads_give_the_same_tokens(
    make: Any, tiny: Checkpoint, prompts: list[str], tiny_references: Cached, schedules: Callable[..., None]
) -> None:
    schedules("threads")
    llm = make(tiny, "eagle3", max_batch=4)
    rows = mixed(8)
    check(run(llm, prompts, rows), rows, tiny_references)
    llm.close()


def test_a_missing_wait_is_found(
    make: Any,
    tiny: Checkpoint,
    prompts: list[str],
    schedules: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the model's wait for the masks, some legal order gives other tokens or an error."""
    guide = make_guide(("regex", r"[0-9]{12}"))
    sampling = SamplingParams(max_tokens=14)
    with_wait = make(tiny, "eagle3", max_batch=1)
    expected = with_wait.generate(prompts[0], guide=guide, sampling=sampling).token_ids

    # Issue the masks only after the forward, or they would nearly always be there in time.
    verify_masks, late = GrammarStream.verify_masks, list[Callable[[], None]]()

    def verify_late(self: GrammarStream, *args: Any, **options: Any) -> None:
        late.append(lambda: verify_masks(self, *args, **options))

    def apply_at_once(self: GrammarStream, stream: Stream, logits_BTV: Tensor, slots_B: Tensor) -> None:
        late.pop()()
        stream.launch(grammar_stream._apply_masks, logits_BTV.flatten(0, 1), self._masks, slots_B, 0, None)

    monkeypatch.setattr(GrammarStream, "verify_masks", verify_late)
    monkeypatch.setattr(GrammarStream, "apply_verify", apply_at_once)
    without = make(tiny, "eagle3", max_batch=1)
    found = 0
    for seed in range(30):
        schedules("random", seed)
        (output,) = without.generate([prompts[0]], guide=guide, sampling=sampling)
        found += output.error is not None or output.token_ids != expected
        cpu.synchronize()
    assert found > 0


def test_requests_with_one_guide_are_admitted_together(
    make: Any, tiny: Checkpoint, prompts: list[str], tiny_references: Cached
) -> None:
    """They wait for one compilation; when it is done none is left behind."""
    llm = make(tiny, "plain", max_batch=8)
    llm.generate(prompts[:8], guide=make_guide(GUIDES[3]), sampling=GREEDY)
    assert llm.num_iterations < 2 * MAX_TOKENS
