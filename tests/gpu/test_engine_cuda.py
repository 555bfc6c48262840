"""The engine on a GPU: the CPU's tokens, captured and eager, speculative and not, with guides and without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from support.engine.drafters import DRAFTERS
from support.engine.drafting_requests import check, run
from support.engine.oracle import Reference
from support.engine.references import Checkpoint
from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation
from weft.engine.runner.step import GuidedLogits, Plan
from weft.runtime import get
from weft.tiny.records import Record

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

SAMPLING = SamplingParams(max_tokens=120)


@pytest.fixture(scope="module")
def expected(records: list[Record]) -> list[list[int]]:
    with LLM(device="cpu") as llm:
        return answer(llm, records)


def answer(llm: LLM, records: list[Record]) -> list[list[int]]:
    guides = [Guide.json_schema(r.schema) if i % 3 else None for i, r in enumerate(records)]
    outputs = llm.generate([r.prompt for r in records], guide=guides, sampling=SAMPLING)
    assert all(output.error is None for output in outputs)
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize("num_drafts", [1, 3, 8])
@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("graphs", ["one", "split"])
@pytest.mark.parametrize("drafter", sorted(DRAFTERS))
def test_tokens_are_the_cpus_without_speculation(
    tiny: Checkpoint,
    prompts: list[str],
    reference: list[Reference],
    random_drafters: Path,
    drafter: str,
    graphs: Any,
    batch: int,
    num_drafts: int,
) -> None:
    speculation = DRAFTERS[drafter](random_drafters, num_drafts)
    engine = EngineConfig(max_batch=batch, max_seq_len=512, graphs=graphs)
    with LLM(tiny.path, device="cuda", speculation=speculation, engine=engine) as llm:
        check(run(llm, prompts), reference)
        assert llm.num_graph_replays > 0


SPECULATIONS = {
    "plain": Speculation.none(),
    "eagle3": Speculation.eagle3(),
    "by batch size": Speculation.eagle3(num_draft_tokens={1: 5, 2: 3, 6: 0}),
}


@pytest.mark.parametrize("graphs", ["none", "one", "split"])
@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("speculation", sorted(SPECULATIONS))
def test_long_answers_are_the_cpus(
    records: list[Record], expected: list[list[int]], speculation: str, batch: int, graphs: Any
) -> None:
    """In f32; a few answers may part where two logits lie within rounding, and then both obey the schema."""
    config = EngineConfig(max_batch=batch, graphs=graphs)
    with LLM(device="cuda", speculation=SPECULATIONS[speculation], engine=config) as llm:
        got = answer(llm, records)
        assert (llm.num_graph_replays > 0) == (graphs != "none")
        same = sum(a == b for a, b in zip(got, expected, strict=True))
        assert same >= len(records) - 2
        for i, (tokens, record) in enumerate(zip(got, records, strict=True)):
            if i % 3:
                jsonschema.validate(
                    json.loads(llm.tokenizer.decode(tokens, skip_special_tokens=True)), record.schema
                )


@pytest.mark.parametrize("speculation", sorted(SPECULATIONS))
def test_polled_host_tasks_give_the_same_answers(records: list[Record], speculation: str) -> None:
    """Where the device has stream memory operations; it waits for the polling thread then."""
    got = []
    for host_tasks in ("callback", "polling"):
        config = EngineConfig(max_batch=8, host_tasks=host_tasks)
        with LLM(device="cuda", speculation=SPECULATIONS[speculation], engine=config) as llm:
            if llm.engine.config.host_tasks != host_tasks:
                pytest.skip(f"polling: {get('cuda').prepare_polling()}")
            got.append(answer(llm, records))
    assert got[0] == got[1]


@pytest.fixture(scope="module")
def half() -> Iterator[LLM]:
    with LLM(device="cuda", dtype="bfloat16", speculation=Speculation.eagle3()) as llm:
        yield llm


def test_guided_answers_are_valid_in_bf16(half: LLM, records: list[Record]) -> None:
    sampling = [SamplingParams(max_tokens=300, temperature=1.0, seed=i) for i in range(len(records))]
    guides = [Guide.json_schema(r.schema) for r in records]
    for record, output in zip(
        records, half.generate([r.prompt for r in records], guide=guides, sampling=sampling), strict=True
    ):
        assert output.error is None
        if output.finish_reason == "stop":
            jsonschema.validate(json.loads(output.text), record.schema)


def test_a_broken_guide_ends_its_own_request(half: LLM, records: list[Record]) -> None:
    prompt, good = records[1].prompt, Guide.json_schema(records[1].schema)
    alone = half.generate(prompt, guide=good, sampling=SAMPLING)
    outputs = half.generate([prompt] * 2, guide=[good, Guide.json_schema({"$ref": "#"})], sampling=SAMPLING)
    assert outputs[1].error is not None
    assert outputs[0].error is None
    assert outputs[0].finish_reason == alone.finish_reason


def test_the_captured_graph_has_host_nodes(half: LLM) -> None:
    pytest.importorskip("cuda.bindings", reason="needs cuda-bindings")
    dump = half.engine.graphs.dump(Plan(1, 3, GuidedLogits.DRAFTS))
    kinds = [kind for kind, _ in dump.nodes]
    assert kinds.count("host") == 5  # fetch, extend(3), commit, extend(1), extend(2)
    assert "kernel" in kinds
    assert dump.edges
