"""The guided protocol in whole requests: ends inside drafts, drafts that can't be, slots that change hands, iterations
out of step. What goes wrong ends its own request; every other has the tokens that it has alone.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.engine.checkpoints import save_eagle3
from support.engine.drafters import DRAFTERS
from support.engine.protocol_requests import GUIDES, SAMPLINGS, SCHEMA, make_llm
from support.engine.references import Checkpoint
from support.products import each_value, every_third, rest_slow
from weft import LLM, Guide, GuideStateError, SamplingParams, Speculation
from weft.client import Request
from weft.config import Graphs
from weft.engine.engine import Engine
from weft.engine.sequence import Sequence

NUMBERS = itertools.count(1)


# -- slots


@rest_slow
@pytest.mark.parametrize("graphs", ["one", "split"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_cancelled_request_leaves_its_neighbours_alone(
    prompts: list[str], alone: list[list[int]], drafters: Path, drafter: str, graphs: Graphs
) -> None:
    """Its slot goes to a request with another guide, behind its neighbours in the batch though not in the slots."""
    with make_llm(DRAFTERS[drafter](drafters, 3), graphs=graphs) as llm:
        rows = zip(prompts, GUIDES, SAMPLINGS, strict=False)
        first, cancelled, last, late, later = (request_of(llm, *row) for row in rows)
        engine = llm.engine
        for request in (first, cancelled, last):
            engine.submit(request)
        turn_until(engine, lambda: len(first.output.token_ids) > 1 and bool(last.output.token_ids))
        engine.cancel(cancelled)
        engine.submit(late)
        turn_until(engine, lambda: bool(late.output.token_ids))
        assert [running.slot for running in engine.scheduler.running] == [0, 2, 1]
        turn_until(engine, lambda: last.is_finished)
        engine.submit(later)
        turn_until(engine, lambda: not engine.has_work)
        told = [request.output.token_ids for request in (first, last, late, later)]
        assert told == [alone[0], *alone[2:]]


def request_of(llm: LLM, prompt: str, guide: Guide | None, sampling: SamplingParams) -> Sequence:
    """A request for `llm.engine`, its guide compiled. The engine's own thread sleeps while nothing comes by the LLM."""
    (prepared,) = llm.client.prepare([Request(prompt, sampling, guide)])
    (request,) = llm.client.inputs.begin(prepared, next(NUMBERS))
    if request.guide is not None:
        request.guide.compiling.result()
    return request


def turns(llm: LLM, prompt: str, guide: Guide, sampling: SamplingParams) -> Iterator[Sequence]:
    """The request behind each turn of the engine."""
    request = request_of(llm, prompt, guide, sampling)
    llm.engine.submit(request)
    while not request.is_finished:
        llm.engine.step()
        yield request
    turn_until(llm.engine, lambda: not llm.engine.has_work)


def turn_until(engine: Engine, is_done: Callable[[], bool]) -> None:
    while not is_done():
        engine.step()


# -- ends


@pytest.mark.parametrize("drafter", ["eagle3", "mtp", "draft_model"])
def test_an_end_inside_the_drafts(
    tiny: Checkpoint, prompts: list[str], plain: LLM, drafters: Path, drafter: str
) -> None:
    """The end is a draft, and drafts behind it are accepted, too; nothing of them is in the answer."""
    guide, sampling = Guide.json_schema(SCHEMA), SamplingParams(max_tokens=60)
    (end,) = tiny.end_ids
    within = 0
    with make_llm(DRAFTERS[drafter](drafters, 8), max_batch=1) as llm:
        for prompt in prompts[:12]:
            output = llm.generate(prompt, guide=guide, sampling=sampling)
            assert output.token_ids == plain.generate(prompt, guide=guide, sampling=sampling).token_ids
            assert output.token_ids.count(end) == (output.finish_reason == "stop")
            assert len(output.drafted) == len(output.token_ids)
            count, *committed = llm.engine.parts.state.verified[0].tolist()
            if output.drafted[-1] and end in committed[: count - 1]:
                within += 1
    assert within > 0


# -- drafts that are fewer than asked for, or none


def test_a_pruned_vocabulary_that_cannot_say_what_the_grammar_wants(
    tiny: Checkpoint, prompts: list[str], plain: LLM, tmp_path: Path
) -> None:
    """A drafter that knows digits alone drafts where digits may stand, and nothing where letters must."""
    digits = [i for i in range(len(tiny.tokenizer)) if re.fullmatch("[0-9]+", tiny.tokenizer.decode([i]))]
    config = tiny.model.config
    head = tmp_path / "head"
    save_eagle3(
        head, config.vocab_size, config.hidden_size, config.num_hidden_layers, draft_vocab=len(digits)
    )
    weights = load_file(head / "model.safetensors")
    weights["d2t"] = torch.tensor(digits) - torch.arange(len(digits))
    save_file(weights, head / "model.safetensors")
    sampling = SamplingParams(max_tokens=12, temperature=1.0, seed=4)
    with make_llm(Speculation.eagle3(head, num_draft_tokens=3, guide_drafts=True)) as llm:
        for pattern, can_draft in ((r"[a-z]{30}", False), (r"[0-9]{30}", True)):
            state, seen = llm.engine.parts.state, []
            for request in turns(llm, prompts[0], Guide.regex(pattern), sampling):
                if request.output.stats.iterations:  # the prompt's end is not drafted behind
                    seen += state.drafts[:, 0].tolist()
            assert all(draft in digits for draft in seen) if can_draft else set(seen) == {-1}
            tokens = llm.generate(prompts[0], guide=Guide.regex(pattern), sampling=sampling).token_ids
            assert (
                tokens == plain.generate(prompts[0], guide=Guide.regex(pattern), sampling=sampling).token_ids
            )


@rest_slow
@pytest.mark.parametrize("graphs", ["one", "split"])
@pytest.mark.parametrize("drafter", ["ngram", "forced", "forced+ngram"])
def test_fewer_drafts_than_asked_for(
    prompts: list[str], plain: LLM, drafters: Path, drafter: str, graphs: Graphs
) -> None:
    """Between none and K: those that are there are verified, as if there were no others."""
    guide, sampling = Guide.json_schema(SCHEMA), SamplingParams(max_tokens=30)
    counts = set()
    with make_llm(DRAFTERS[drafter](drafters, 8), max_batch=1, graphs=graphs) as llm:
        for prompt in prompts[:4]:
            expected = plain.generate(prompt, guide=guide, sampling=sampling).token_ids
            for request in turns(llm, prompt, guide, sampling):  # noqa: B007
                drafts = llm.engine.parts.state.drafts[:, 0]
                counts.add(int((drafts >= 0).sum()))
                assert bool((drafts[counts_in(drafts) :] == -1).all())
            assert request.output.token_ids == expected
    assert counts & set(range(1, 8))


def counts_in(drafts: torch.Tensor) -> int:
    """How many leading drafts are tokens."""
    return int((drafts >= 0).long().cumprod(0).sum())


# -- iterations out of step


@pytest.mark.parametrize("drafter", every_third([None, *DRAFTERS]))
def test_a_launch_without_its_snapshot_ends_its_requests(
    monkeypatch: pytest.MonkeyPatch,
    prompts: list[str],
    alone: list[list[int]],
    drafters: Path,
    drafter: str | None,
) -> None:
    """Guided requests in that iteration end; those behind it are whole."""
    speculation = DRAFTERS[drafter](drafters, 3) if drafter is not None else None
    with make_llm(speculation) as llm:
        grammar, push = llm.engine.grammar, llm.engine.grammar.push
        pushed = 0

        def forgetful(*args: Any) -> int:
            nonlocal pushed
            pushed += 1
            return push(*args) if pushed != 5 else 0

        assert generate(llm, prompts, 3) == alone[:3]
        monkeypatch.setattr(grammar, "push", forgetful)
        outputs = llm.generate(prompts[:3], guide=GUIDES[:3], sampling=SAMPLINGS[:3])
        for output, guide, whole in zip(outputs, GUIDES, alone, strict=False):
            if guide is None:
                assert output.token_ids == whole
            else:
                assert isinstance(output.error, GuideStateError)
                assert "no snapshot was pushed for this iteration" in str(output.error)
                assert output.token_ids == whole[: len(output.token_ids)]
        assert pushed >= 5
        assert generate(llm, prompts, 5) == alone


@each_value
@pytest.mark.parametrize("graphs", ["one", "split", "none"])
@pytest.mark.parametrize("drafter", [None, *DRAFTERS])
def test_a_snapshot_without_its_launch_ends_its_requests(
    monkeypatch: pytest.MonkeyPatch,
    prompts: list[str],
    alone: list[list[int]],
    drafters: Path,
    drafter: str | None,
    graphs: Graphs,
) -> None:
    """A launch that fails leaves no snapshot to the next one."""
    speculation = DRAFTERS[drafter](drafters, 3) if drafter is not None else None
    with make_llm(speculation, graphs=graphs) as llm:
        for guide in GUIDES[:3]:
            if guide is not None:
                llm.compile(guide).result()  # so that all three are in the launch that fails
        run, launched = llm.engine.graphs.run, 0

        def failing(*args: Any) -> None:
            nonlocal launched
            launched += 1
            if launched == 2:
                raise RuntimeError("planted in the launch")
            run(*args)

        monkeypatch.setattr(llm.engine.graphs, "run", failing)
        outputs = llm.generate(prompts[:3], guide=GUIDES[:3], sampling=SAMPLINGS[:3])
        for output, whole in zip(outputs, alone, strict=False):
            assert "planted in the launch" in str(output.error)
            assert output.token_ids == whole[: len(output.token_ids)]
        assert generate(llm, prompts, 5) == alone


def generate(llm: LLM, prompts: list[str], count: int) -> list[list[int]]:
    outputs = llm.generate(prompts[:count], guide=GUIDES[:count], sampling=SAMPLINGS[:count])
    assert [output.error for output in outputs if output.error is not None] == []
    return [output.token_ids for output in outputs]
