"""A program's log and variables come with the answer: what its steps for the answer's tokens left, and no more,
whatever was drafted, in flight or taken back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from support.engine.drafters import DRAFTERS
from support.executor import until_final
from support.wasm.digits import splicing, telling, told
from support.wasm.guides import PROMPT, tokens_of
from weft import LLM, EngineConfig, Guide, GuideError, GuideStateError, Output, RequestError, SamplingParams
from weft.aici import WasmLimits
from weft.cli import app
from weft.executor import (
    Executor,
    ExecutorConfig,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    OutputConfig,
    Request,
    Result,
    SamplingConfig,
)

SAMPLING = [
    SamplingParams(temperature=1.0, seed=1, max_tokens=9),  # ends at its length
    SamplingParams(temperature=1.0, seed=2, max_tokens=60),  # at the program's end
    SamplingParams(temperature=1.0, seed=3, max_tokens=60, stop="7"),
    SamplingParams(temperature=1.0, seed=4, max_tokens=14),
]


def program(count: int, body: str = "") -> Guide:
    return Guide.wasm(telling(body=body), str(count), trusted=True)


def spliced() -> Guide:
    """Each 8 and 6 goes, and two zeros come; so the text is written anew."""
    when = [token for digit in "86" for token in tokens_of(digit)]
    made = telling(splicing(when, 1, tokens_of("0") * 2).decode())
    return Guide.wasm(made, "16", trusted=True)


def check(output: Output, end_ids: set[int]) -> None:
    """The log is of exactly the answer's tokens, and the variable of as many steps."""
    assert output.error is None and output.program_log is not None
    assert told(output.program_log) == [token for token in output.token_ids if token not in end_ids]
    assert output.program_variables == {"steps": b"." * len(output.program_log.splitlines())}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("drafter", [None, "eagle3", "ngram", "forced+eagle3", "draft_model"])
def test_of_every_drafter_the_same(drafter: str | None, overlap: bool) -> None:
    speculation = DRAFTERS[drafter](Path(), 4) if drafter else None
    engine = EngineConfig(max_batch=8, overlap=overlap)
    with LLM(device="cpu", engine=engine, speculation=speculation) as llm:
        end_ids = set(llm.tokenizer.all_special_ids)
        outputs = llm.generate(
            [PROMPT] * 7,
            guide=[program(20), program(12), program(40), spliced(), program(30), spliced(), None],
            sampling=[*SAMPLING, *SAMPLING[:3]],
        )
    for output in outputs[:3] + outputs[4:5]:
        check(output, end_ids)
    # Of a text that is written anew the log has what stood there before, too.
    for output in (outputs[3], outputs[5]):
        assert output.program_log is not None and output.program_variables is not None
        assert len(output.program_log.splitlines()) == len(output.program_variables["steps"])
        expected = ALONE.setdefault(str(output.token_ids), output.program_log)
        assert output.program_log == expected
    assert {output.finish_reason for output in outputs} == {"stop", "length"}
    assert outputs[6].program_log is None and outputs[6].program_variables is None


ALONE: dict[str, str] = {}


def test_behind_free_text() -> None:
    with LLM(device="cpu", speculation=DRAFTERS["ngram"](Path(), 4)) as llm:
        guide = Guide.after("e", program(8), max_free_tokens=5)
        for max_tokens in (3, 40):
            output = llm.generate(PROMPT, guide=guide, sampling=SamplingParams(max_tokens=max_tokens))
            assert output.program_log is not None
            tokens = [token for token in output.token_ids if token not in llm.tokenizer.all_special_ids]
            digits = told(output.program_log)
            assert tokens[len(tokens) - len(digits) :] == digits
            assert len(llm.tokenizer.decode(digits)) == (8 if output.finish_reason == "stop" else 0)


def test_of_requests_that_fail() -> None:
    """What was written before the step that failed; that step's words are in the error."""
    fails = "(if (i32.le_s (global.get $left) (i32.const 4)) (then unreachable))"
    with LLM(device="cpu", speculation=DRAFTERS["eagle3"](Path(), 4)) as llm:
        bad, good = llm.generate([PROMPT] * 2, guide=[program(9, fails), program(5)], sampling=SAMPLING[1])
        assert isinstance(bad.error, GuideStateError) and bad.program_log is not None
        assert told(bad.program_log) == bad.token_ids[: len(told(bad.program_log))]
        assert bad.program_variables == {"steps": b"." * len(bad.program_log.splitlines())}
        assert '"sampled":' in str(bad.error) and str(bad.error).isprintable()
        check(good, set(llm.tokenizer.all_special_ids))
        for ask in (llm.generate, lambda *args, **more: list(llm.stream(*args, **more))):
            with pytest.raises(RequestError) as raised:
                ask(PROMPT, guide=program(9, fails), sampling=SAMPLING[1])
            assert raised.value.output.program_log == bad.program_log


def test_a_log_is_bounded_and_replaced_where_it_is_no_text() -> None:
    """Each step writes 0xff and 999 bytes more."""
    body = """(i32.store8 (i32.const 65536) (i32.const 0xff))
      (i32.store (i32.const 604) (i32.const 1000))
      (drop (call $fd_write (i32.const 1) (i32.const 600) (i32.const 1) (i32.const 608)))"""
    guide = Guide.wasm(telling(body=body), "20", limits=WasmLimits(log_bytes=3000), trusted=True)
    with LLM(device="cpu") as llm:
        output = llm.generate(PROMPT, guide=guide, sampling=SAMPLING[1])
    assert output.program_log is not None and output.program_variables is not None
    assert 2900 < len(output.program_log) <= 3000
    assert "�" in output.program_log
    assert list(output.program_variables) == ["steps"]


def test_a_name_of_a_variable_that_is_no_utf8_is_refused() -> None:
    body = """(i32.store8 (i32.const 721) (i32.const 0xff))
      (drop (call $storage (i32.const 700) (i32.const 56)))"""
    with LLM(device="cpu") as llm, pytest.raises(GuideError, match="a storage command is not JSON"):
        llm.generate(PROMPT, guide=Guide.wasm(telling(body=body), "20", trusted=True), sampling=SAMPLING[1])


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    config = ExecutorConfig(max_batch_size=4, guided_decoding_config=GuidedDecodingConfig())
    with Executor(None, config, device="cpu") as made:
        made.register_guide("telling", program(200)).result(60)
        yield made


def results(executor: Executor, **more: object) -> list[Result]:
    fields = {"output_config": OutputConfig(exclude_input_from_output=True), "max_tokens": 6, **more}
    request = Request(
        tokens_of(PROMPT),
        guided_decoding_params=GuidedDecodingParams.handle("telling"),
        **fields,  # type: ignore[arg-type]
    )
    return [response.result for response in until_final(executor, executor.enqueue_request(request))]


def test_sequences_have_their_own_logs_and_share_variables(executor: Executor) -> None:
    sampling = SamplingConfig(num_return_sequences=3, temperature=1.0, seed=4)
    found = results(executor, sampling_config=sampling)
    assert len(found) == 3
    for result in found:
        assert result.program_log is not None and result.program_variables is not None
        assert told(result.program_log) == result.output_token_ids[0]
    steps = [len(result.program_variables["steps"]) for result in found if result.program_variables]
    # Three times the first step, which was before they were copied: once in all.
    assert max(steps) == 1 + 3 * 6
    again = Result.from_json(found[0].to_json())
    assert (again.program_log, again.program_variables) == (found[0].program_log, found[0].program_variables)


def test_with_the_last_response_of_a_stream(executor: Executor) -> None:
    found = results(executor, streaming=True)
    assert [result.program_log is None for result in found] == [True] * (len(found) - 1) + [False]
    assert told(found[-1].program_log or "") == [t for result in found for t in result.output_token_ids[0]]


def test_of_a_request_that_is_cancelled(executor: Executor) -> None:
    request = Request(
        tokens_of(PROMPT),
        150,
        streaming=True,
        guided_decoding_params=GuidedDecodingParams.handle("telling"),
    )
    number = executor.enqueue_request(request)
    tokens: list[int] = []
    found: list[Result] = []
    while not found or not found[-1].is_final:
        found += [response.result for response in executor.await_responses(number, 20)]
        if len(found) > 3:
            executor.cancel_request(number)
    tokens = [token for result in found for token in result.output_token_ids[0]]
    assert told(found[-1].program_log or "") == tokens
    assert found[-1].program_variables == {"steps": b"." * (len(tokens) + 1)}


def test_in_the_statistics_of_the_command(tmp_path: Path) -> None:
    module, stats = tmp_path / "telling.wat", tmp_path / "stats.json"
    module.write_bytes(telling())
    command = ["generate", "--device", "cpu", PROMPT, "--wasm", str(module), "--wasm-arg", "3"]
    result = CliRunner().invoke(app, [*command, "--stats-json", str(stats)])
    assert result.exit_code == 0, result.output
    (written,) = json.loads(stats.read_text())["prompts"][0]["outputs"]
    assert len(told(written["program_log"])) >= 1
    assert bytes.fromhex(written["program_variables"]["steps"]) == b"." * len(
        written["program_log"].splitlines()
    )
