"""What requests gather besides tokens equals what transformers gives for the same text."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.engine.drafters import DRAFTERS
from support.engine.outputs_oracle import Expected, close
from support.engine.references import Checkpoint
from support.engine.requests import make_request, run
from support.products import rest_slow
from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation
from weft.core.request import Gather
from weft.engine.device.tensors import OutputBuffers, marked_outputs
from weft.engine.sequence import Sequence
from weft.errors import InputError, ModelError
from weft.models.llama import Llama
from weft.models.loading import load_model
from weft.models.outputs import mark_output
from weft.runtime import CpuRuntime

KINDS = ("eagle3", "mtp", "draft_model", "ngram", "forced+eagle3")
CONFIG = EngineConfig(
    kv_cache_dtype="float32",  # as the reference
    max_batch=4,
    max_seq_len=160,
    prefill_chunk=7,
    gather_generation_logits=True,
    additional_outputs=(
        ("hidden_states.0", False),
        ("hidden_states.2", True),
        ("TopKLogits", True),
        ("TopKLogitsIndices", True),
    ),
)
NAMES = tuple(name for name, _ in CONFIG.additional_outputs)
CONTEXT_NAMES = tuple(name for name, context in CONFIG.additional_outputs if context)
EVERYTHING = Gather(True, True, NAMES, CONTEXT_NAMES)
GREEDY = SamplingParams(max_tokens=12)


def make(checkpoint: Checkpoint, kind: str | None = None, **changes: Any) -> LLM:
    speculation = Speculation.none() if kind is None else DRAFTERS[kind](Path(), 3)
    engine = dataclasses.replace(CONFIG, **changes)
    return LLM(checkpoint.path, device="cpu", speculation=speculation, engine=engine)


def assert_gathered(request: Sequence, expected: Expected, gather: Gather = EVERYTHING) -> None:
    """All that `request` asked for is there and right; nothing else is."""
    output, length = request.output, len(request.prompt)
    assert output.error is None
    generated = slice(length - 1, length - 1 + len(output.token_ids))
    if gather.generation_logits:
        close(output.generation_logits, expected.logits[generated])
    else:
        assert output.generation_logits is None
    if gather.context_logits:
        close(output.context_logits, expected.logits[:length])
    else:
        assert output.context_logits is None
    assert set(output.additional) == {*gather.names, *(f"context_{name}" for name in gather.context_names)}
    for name, tensor in output.additional.items():
        where = slice(0, length) if name.startswith("context_") else generated
        name = name.removeprefix("context_")
        if name == "TopKLogitsIndices":
            close(expected.logits[where].gather(1, tensor), expected.named("TopKLogits", where))
        else:
            close(tensor, expected.named(name, where))


@rest_slow
@pytest.mark.parametrize("graphs", ["one", "split", "none"])
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_everything_equals_transformers(
    tiny: Checkpoint, prompts: list[str], kind: str | None, graphs: str
) -> None:
    with make(tiny, kind, graphs=graphs) as llm:
        guide = Guide.regex("[a-z ]{4,9}")
        requests = [
            make_request(llm, prompts[0], GREEDY, gather=EVERYTHING),
            make_request(llm, prompts[1], GREEDY, guide, gather=EVERYTHING),
            make_request(llm, prompts[2], GREEDY),
        ]
        run(llm, requests)
    for request in requests:
        gather = request.request.gather
        text = request.prompt + request.output.token_ids
        assert_gathered(request, Expected.of(tiny, text), gather)
    logits = requests[0].output.generation_logits
    assert logits is not None and logits.argmax(1).tolist() == requests[0].output.token_ids


def test_each_request_gets_what_it_asked_for(tiny: Checkpoint, prompts: list[str]) -> None:
    gathers = [
        Gather(context_logits=True),
        Gather(generation_logits=True),
        Gather(names=("hidden_states.0",)),
        Gather(names=("TopKLogits",), context_names=("TopKLogits", "hidden_states.2")),
        Gather(),
    ]
    with make(tiny, "eagle3") as llm:
        requests = [make_request(llm, prompts[i], GREEDY, gather=gather) for i, gather in enumerate(gathers)]
        run(llm, requests)
    for request in requests:
        text = request.prompt + request.output.token_ids
        assert_gathered(request, Expected.of(tiny, text), request.request.gather)


def test_a_prompt_is_read_whole_for_its_outputs(tiny: Checkpoint, prompts: list[str]) -> None:
    """What was read before is found again by others, but has no outputs."""
    with make(tiny, "eagle3") as llm:
        requests = [
            make_request(llm, prompts[0], GREEDY, gather=gather)
            for gather in (Gather(), Gather(context_logits=True), Gather(generation_logits=True))
        ]
        for request in requests:
            run(llm, [request])
    expected = Expected.of(tiny, requests[0].prompt + requests[0].output.token_ids)
    for request in requests:
        assert_gathered(request, expected, request.request.gather)
    first, whole, found = (request.output.stats.reused_tokens for request in requests)
    assert first == whole == 0 < found


@pytest.mark.parametrize(("kind", "num_pages"), [(None, 68), ("eagle3", 78)])
def test_preemption_loses_nothing(
    tiny: Checkpoint, prompts: list[str], kind: str | None, num_pages: int
) -> None:
    paused: list[int] = []
    with make(tiny, kind, policy="max_utilization", num_pages=num_pages, page_size=4) as llm:
        sampling = SamplingParams(max_tokens=40)
        requests = [make_request(llm, prompt, sampling, gather=EVERYTHING) for prompt in prompts[:3]]
        for request in requests:
            llm.engine.submit(request)
        while not all(request.is_finished for request in requests):
            paused += llm.engine.step().paused
    assert paused
    for request in requests:
        assert_gathered(request, Expected.of(tiny, request.prompt + request.output.token_ids))


@pytest.mark.parametrize("overlap", [False, True])
def test_overlap_loses_nothing(tiny: Checkpoint, prompts: list[str], overlap: bool) -> None:
    with make(tiny, "eagle3", overlap=overlap, max_num_tokens=36) as llm:
        requests = [make_request(llm, prompt, GREEDY, gather=EVERYTHING) for prompt in prompts[:6]]
        run(llm, requests)
    for request in requests:
        assert_gathered(request, Expected.of(tiny, request.prompt + request.output.token_ids))


@pytest.mark.parametrize("rows", [(3,), (1, 3)])
def test_rows_of_a_marked_tensor_must_be_positions(tiny: Checkpoint, rows: tuple[int, ...]) -> None:
    class Wrong(Llama):
        def logits(self, hidden: Tensor) -> Tensor:
            mark_output("wrong", torch.zeros(rows))
            return super().logits(hidden)

    runtime, model = CpuRuntime(), load_model(tiny.path)
    model.__class__ = Wrong
    with pytest.raises(ModelError, match=r"'wrong'.*its rows must be positions"):
        marked_outputs(runtime, runtime.stream(), model)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (["TopKLogits"], "must be a tuple of pairs"),
        (("TopKLogits",), "must be a tuple of pairs"),
        ((("TopKLogits", 1),), "must be a tuple of pairs"),
        ((("TopKLogits", True), ("TopKLogits", False)), "names an output twice"),
    ],
)
def test_names_come_in_pairs(outputs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        EngineConfig(additional_outputs=outputs)


def test_logits_are_raw(tiny: Checkpoint, prompts: list[str]) -> None:
    """Penalties, bias and temperature do not show in them."""
    sampling = SamplingParams(
        max_tokens=10, temperature=0.9, seed=3, logit_bias={40: 5.0}, repetition_penalty=1.3, logprobs=2
    )
    with make(tiny, "eagle3") as llm:
        request = make_request(llm, prompts[0], sampling, gather=Gather(generation_logits=True))
        run(llm, [request])
    output = request.output
    assert_gathered(request, Expected.of(tiny, request.prompt + output.token_ids), request.request.gather)
    assert output.logprobs is not None and output.generation_logits is not None
    for i, (token, given) in enumerate(zip(output.token_ids, output.logprobs, strict=True)):
        logprob = output.generation_logits[i].log_softmax(0)[token]
        assert given.logprob == pytest.approx(float(logprob), abs=1e-4)


def test_what_came_first_stays_while_more_comes(tiny: Checkpoint, prompts: list[str]) -> None:
    """A stream may keep what it was given: tensors grow by new ones."""
    seen: list[tuple[Tensor, Tensor]] = []

    def watch(request: Sequence) -> None:
        logits = request.output.generation_logits
        assert logits is not None and logits.shape[0] == len(request.output.token_ids)
        seen.append((logits, logits.clone()))

    with make(tiny, "ngram") as llm:
        sampling = SamplingParams(max_tokens=40)
        request = make_request(
            llm, prompts[0], sampling, gather=Gather(generation_logits=True), on_progress=watch
        )
        run(llm, [request])
    assert len(seen) > 5
    assert all(torch.equal(kept, copy) for kept, copy in seen)


@pytest.mark.parametrize(
    ("changes", "gather", "message"),
    [
        (
            {"gather_generation_logits": False},
            Gather(generation_logits=True),
            "gather_generation_logits=True",
        ),
        ({}, Gather(names=("hidden_states.1",)), "additional_outputs"),
        ({}, Gather(context_names=("hidden_states.0",)), "with its context"),
        ({"additional_outputs": ()}, Gather(names=("logits",)), "gathers none"),
    ],
)
def test_what_the_engine_does_not_gather_is_refused(
    tiny: Checkpoint, prompts: list[str], changes: dict[str, Any], gather: Gather, message: str
) -> None:
    with make(tiny, **changes) as llm:
        request = make_request(llm, prompts[0], GREEDY, gather=gather)
        run(llm, [request])
        assert isinstance(request.output.error, InputError)
        assert message in str(request.output.error)


def test_unknown_names_are_refused_with_those_there_are(tiny: Checkpoint) -> None:
    with pytest.raises(InputError, match=r"'hidden_states.99'.*TopKLogits, .*hidden_states.0"):
        make(tiny, additional_outputs=(("hidden_states.99", False),))


def test_nothing_is_allocated_unless_asked_for(tiny: Checkpoint) -> None:
    with make(tiny, gather_generation_logits=False, additional_outputs=()) as llm:
        outputs: OutputBuffers = llm.engine.parts.outputs
        assert not outputs.by_slot
