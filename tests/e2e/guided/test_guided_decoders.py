"""Loops that are not weft's, over the two decoders: eager equals captured equals the oracle."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.engine.toy import CapturedLoop, EagerLoop, Tables, oracle
from support.grammar.grammars import END, compiled, ids, small_vocabulary, some_guides
from weft.errors import InputError
from weft.grammar import Guide
from weft.guided import (
    CapturableGuidedDecoder,
    GuidedDecoder,
    GuidedRequest,
    allocate_token_bitmask,
    apply_token_bitmask_,
    grammar_stream,
)
from weft.guided.grammar_stream import GrammarStream
from weft.runtime import CpuRuntime, cpu
from weft.runtime.interface import Stream

FIRSTS = [5, 17, 29, 41, 53]
ORDER = [3, 0, 4, 2, 1]
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Tables.make()


@pytest.fixture(scope="module")
def guides() -> list[Guide | None]:
    json_schema, ab, lower, _, nested, _ = some_guides()
    return [ab, None, json_schema, nested, lower]


@pytest.fixture(scope="module")
def expected(tables: Tables, guides: list[Guide | None]) -> list[list[int]]:
    return [oracle(tables, guide, first) for guide, first in zip(guides, FIRSTS, strict=True)]


@pytest.fixture
def schedules() -> Iterator[None]:
    yield
    cpu.synchronize()
    cpu.set_schedule("inline")


@pytest.mark.parametrize("guided_drafts", [True, False])
@pytest.mark.parametrize("max_drafts", [0, 1, 3])
def test_eager_equals_captured_equals_the_oracle(
    tables: Tables,
    guides: list[Guide | None],
    expected: list[list[int]],
    max_drafts: int,
    guided_drafts: bool,
) -> None:
    eager = EagerLoop(CpuRuntime(), tables, guides, ORDER, max_drafts, guided_drafts)
    assert eager.run(FIRSTS) == expected
    for capture in (True, False):
        loop = CapturedLoop(CpuRuntime(), tables, guides, ORDER, max_drafts, guided_drafts)
        assert loop.run(FIRSTS, capture) == expected
        assert loop.decoder.state.num_failed == 0
    assert eager.decoder.state.num_failed == 0


def test_guided_drafts_are_accepted_more_often(tables: Tables, guides: list[Guide | None]) -> None:
    iterations = []
    for guided_drafts in (True, False):
        loop = EagerLoop(CpuRuntime(), tables, guides, ORDER, 3, guided_drafts)
        loop.run(FIRSTS)
        iterations.append(loop.iterations)
    assert iterations[0] < iterations[1]


@pytest.fixture(scope="module")
def inline(tables: Tables, guides: list[Guide | None], expected: list[list[int]]) -> Any:
    """The texts, and what was drafted for them."""
    told = CapturedLoop(CpuRuntime(), tables, guides, ORDER, 3, True).told(FIRSTS)
    assert told[0] == expected and sum(told[1][1]) > 0
    return told


@pytest.mark.parametrize(
    ("name", "seed"), [*(("random", seed) for seed in range(6)), ("ahead", 0), ("ahead", 1), ("threads", 0)]
)
def test_every_schedule_gives_the_same_answers(
    schedules: None,
    tables: Tables,
    guides: list[Guide | None],
    inline: Any,
    name: cpu.ScheduleName,
    seed: int,
) -> None:
    cpu.set_schedule(name, seed)
    loop = CapturedLoop(CpuRuntime(), tables, guides, ORDER, 3, True)
    assert loop.told(FIRSTS) == inline


def _apply_at_once(
    self: GrammarStream,
    stream: Stream,
    logits_BTV: torch.Tensor,
    slots_B: torch.Tensor,
    d2t: torch.Tensor | None = None,
) -> None:
    stream.launch(grammar_stream._apply_masks, logits_BTV.flatten(0, 1), self._masks, slots_B, 0, d2t)


def _enter_once_a_step(self: GrammarStream, stream: Stream) -> None:
    """Joins the grammar stream to the capture; what later parts of the step wrote, it does not wait for."""
    calls = self.__dict__.setdefault("calls", [])
    if len(calls) % 4 == 0:
        stream.record(self.token_event)
        self.stream.wait(self.token_event)
    calls.append(1)


@pytest.mark.parametrize(
    ("method", "without"), [("apply_verify", _apply_at_once), ("_enter", _enter_once_a_step)]
)
def test_a_removed_wait_is_found(
    schedules: None,
    monkeypatch: pytest.MonkeyPatch,
    tables: Tables,
    guides: list[Guide | None],
    expected: list[list[int]],
    method: str,
    without: object,
) -> None:
    """The schedules see a missing wait, without a GPU: other tokens, or a slot that fails."""
    monkeypatch.setattr(GrammarStream, method, without)
    found = 0
    ways: list[tuple[cpu.ScheduleName, int]] = [("ahead", 0), ("ahead", 1)]
    for name, seed in (*ways, *(("random", seed) for seed in range(4))):
        cpu.synchronize()
        cpu.set_schedule(name, seed)
        loop = CapturedLoop(CpuRuntime(), tables, guides, ORDER, 3, True)
        found += loop.run(FIRSTS) != expected or loop.decoder.state.num_failed > 0
    assert found > 0


def decoder_for(guide: Guide, max_drafts: int = 4) -> GuidedDecoder:
    decoder = GuidedDecoder(CpuRuntime(), 2, max_drafts, small_vocabulary().vocab_size, [END])
    decoder.add_batch([GuidedRequest(1, compiled(guide).matcher())])
    decoder.execute(torch.zeros(1, 300))
    return decoder


@pytest.mark.parametrize("accepted", range(5))
def test_rollback_then_the_true_prefix(accepted: int) -> None:
    """Drafts { " a " ; whatever is accepted, the text goes on behind it, and its end is blocked."""
    decoder = decoder_for(Guide.json())
    text = ids('{"a":')
    decoder.add_batch([GuidedRequest(1, draft_tokens=tuple(text[:4]))])
    logits = torch.zeros(5, 300)
    decoder.execute(logits)
    assert torch.isfinite(logits).any(1).all()
    assert (logits[:, END] == -torch.inf).all()
    assert all(logits[position, token] == 0 for position, token in enumerate(text))
    decoder.rollback_rejected_tokens([accepted], [text[accepted]])
    rest = text[accepted + 1 :]
    decoder.add_batch([GuidedRequest(1, draft_tokens=tuple(rest))])
    decoder.execute(torch.zeros(1 + len(rest), 300))
    assert decoder.state.committed(1) == accepted + 1
    assert decoder.state.extended(1) == len(rest)
    assert decoder.status(1) == ("", "")


@pytest.mark.parametrize("accepted", range(5))
def test_an_end_inside_the_drafts(accepted: int) -> None:
    """Drafts { } END a: counts stop at 3, and the end is undone only where fewer than 3 were accepted."""
    decoder = decoder_for(Guide.json())
    drafts = (*ids("{}"), END, *ids("a"))
    decoder.add_batch([GuidedRequest(1, draft_tokens=drafts)])
    decoder.execute(torch.zeros(5, 300))
    assert decoder.state.extended(1) == 3
    new = ids(" ")[0] if accepted < 3 else END
    decoder.rollback_rejected_tokens([accepted], [new])
    decoder.add_batch([GuidedRequest(1)])
    decoder.execute(torch.zeros(1, 300))
    assert decoder.state.is_terminated(1) == (accepted >= 3)
    assert (
        decoder.state.committed(1) == min(accepted + (accepted < 3), 3) or decoder.status(1)[0] == "refused"
    )


def test_without_the_rollback_the_next_token_is_refused() -> None:
    decoder = decoder_for(Guide.json())
    decoder.add_batch([GuidedRequest(1, draft_tokens=tuple(ids('{"a"')))])
    decoder.execute(torch.zeros(5, 300))
    decoder.add_batch([GuidedRequest(1, new_token=ids("}")[0])])
    decoder.execute(torch.zeros(1, 300))
    assert decoder.status(1)[0] == "refused"
    decoder = decoder_for(Guide.json())
    decoder.add_batch([GuidedRequest(1, draft_tokens=tuple(ids('{"a"')))])
    decoder.execute(torch.zeros(5, 300))
    decoder.rollback_rejected_tokens([1])
    decoder.add_batch([GuidedRequest(1, new_token=ids("}")[0])])
    decoder.execute(torch.zeros(1, 300))
    assert decoder.status(1) == ("", "")
    assert decoder.state.committed(1) == 2


def test_dropped_drafts_leave_no_trace() -> None:
    decoder = decoder_for(Guide.json())
    decoder.rollback_rejected_tokens([0], ids("{"))
    decoder.execute_draft_batch(torch.zeros(1, 300))
    decoder.add_draft_batch(ids('"'))
    decoder.execute_draft_batch(torch.zeros(1, 300))
    assert decoder.state.extended(1) == 1
    decoder.rollback_draft_tokens()
    assert decoder.state.extended(1) == 0
    decoder.add_batch([GuidedRequest(1, new_token=ids("}")[0])])
    decoder.execute(torch.zeros(1, 300))
    assert decoder.state.committed(1) == 2
    assert decoder.status(1) == ("", "")


def test_tokens_may_come_with_the_batch() -> None:
    """Without speculation nothing but add_batch and execute is needed."""
    decoder = decoder_for(Guide.choice(["true"]))
    for token in ids("true"):
        decoder.add_batch([GuidedRequest(1, new_token=token)])
        logits = torch.zeros(1, 300)
        decoder.execute(logits)
    assert logits[0].argmax() == END
    assert torch.isfinite(logits).sum() == 1


def test_what_the_decoders_refuse() -> None:
    runtime = CpuRuntime()
    eager = GuidedDecoder(runtime, 2, 1, 300, [END])
    captured = CapturableGuidedDecoder(runtime, runtime.stream(), 2, 1, 300, [END], batch_size=1)
    for decoder in (eager, captured):
        for batch, text in [
            ([GuidedRequest(2)], "not in 0..1"),
            ([GuidedRequest(0), GuidedRequest(0)], "have one slot"),
            ([GuidedRequest(0, draft_tokens=(1, 2))], "2 drafts, over 1"),
        ]:
            with pytest.raises(InputError, match=text):
                decoder.add_batch(batch)
    with pytest.raises(InputError, match="do not fit"):
        captured.add_batch([GuidedRequest(0), GuidedRequest(1)])
    with pytest.raises(InputError, match="tokens on the device"):
        captured.add_batch([GuidedRequest(0, new_token=3)])
    eager.add_batch([GuidedRequest(0, is_new=True)])
    with pytest.raises(InputError, match="the batch has 1"):
        eager.execute(torch.zeros(2, 300))
    with pytest.raises(InputError, match="can't be accepted"):
        eager.rollback_rejected_tokens([1])
    with pytest.raises(InputError, match="2 entries"):
        eager.rollback_rejected_tokens([0, 0])
    eager.add_draft_batch([5])
    with pytest.raises(InputError, match="as many as max_drafts"):
        eager.add_draft_batch([5])


@pytest.mark.parametrize(
    "command",
    [
        ["guided_transformers.py", "--max-tokens", "24", "--regex", "[a-z]{3,8}"],
        ["guided_captured_loop.py", "--device", "cpu", "--regex", "(ab|cd){2,4}!"],
    ],
)
def test_examples_run(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", command)
    runpy.run_path(str(EXAMPLES / command[0]), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_a_matcher_alone_masks_a_loop() -> None:
    """The loop that XGrammar's users know: fill a row, apply it, take the token."""
    vocabulary = small_vocabulary()
    matcher = compiled(Guide.regex("(ab|cd){3}")).matcher()
    bitmask = allocate_token_bitmask(2, vocabulary.vocab_size)
    assert bitmask.shape == (2, -(-vocabulary.vocab_size // 32))
    logits = torch.rand(2, vocabulary.vocab_size, generator=torch.Generator().manual_seed(1))
    untouched = logits[0].clone()
    tokens: list[int] = []
    while not matcher.is_terminated():
        matcher.fill(bitmask[1])
        row = logits.clone()
        apply_token_bitmask_(row, bitmask)
        assert torch.equal(row[0], untouched)  # a row that nothing filled allows everything
        tokens.append(int(row[1].argmax()))
        assert matcher.accept(tokens[-1])
    text = vocabulary.decode(tokens).decode()
    assert len(text) == 6 and set(text) <= set("abcd")
    with pytest.raises(InputError, match="at least 1"):
        allocate_token_bitmask(0, 5)
