"""Guides that are programs: the same tokens as a regular expression's; a program that fails alone; sequences, beams and
variables; starts that do not hold up others. With every drafter: `test_every_guide_and_drafter.py`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.executor import until_final
from support.wasm.digits import EXAMPLES, changed, digits, splicing
from support.wasm.guides import PROMPT, SPIN, forced, later, spliced, tokens_of
from weft import LLM, EngineConfig, Guide, GuideError, GuideStateError, Output, SamplingParams, Speculation
from weft.aici import WasmLimits
from weft.executor import (
    Executor,
    ExecutorConfig,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    OutputConfig,
    Request,
    SamplingConfig,
)


def guides() -> list[Guide | None]:
    return [digits(6), None, forced(), spliced(), digits(3), Guide.regex("[a-z]{4,9}"), digits(5), forced()]


SAMPLING = [SamplingParams(max_tokens=16, temperature=t, seed=i) for i, t in enumerate([0.0, 1.0] * 4)]


def run(llm: LLM) -> list[Output]:
    outputs: list[Output] = llm.generate([PROMPT] * len(SAMPLING), guide=guides(), sampling=SAMPLING)
    return outputs


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """The tokens without speculation, one request at a time, launched eagerly."""
    with LLM(device="cpu", engine=EngineConfig(max_batch=1, graphs="none")) as llm:
        outputs = run(llm)
    texts = [output.text for output in outputs]
    for index, pattern in {0: r"\d{6}", 2: r"Nr\. \d{4}", 4: r"\d{3}", 6: r"\d{5}", 7: r"Nr\. \d{4}"}.items():
        assert re.fullmatch(pattern, texts[index]), texts[index]
        assert outputs[index].stats.guided_valid
    assert re.fullmatch(r"([0-57]|[86]00|9)+", texts[3]), texts[3]
    assert re.search("[86]", texts[3])
    return [output.token_ids for output in outputs]


def test_a_program_gives_the_tokens_of_an_equal_regex(plain: list[list[int]]) -> None:
    with LLM(device="cpu") as llm:
        for index, count in ((0, 6), (4, 3), (6, 5)):
            output = llm.generate(PROMPT, guide=Guide.regex(rf"[0-9]{{{count}}}"), sampling=SAMPLING[index])
            assert output.token_ids == plain[index]


def slow(milliseconds: int) -> Guide:
    """Starts until its time is over."""
    program = changed('(func (export "aici_init"))', f'(func (export "aici_init") {SPIN})')
    return Guide.wasm(program.encode(), limits=WasmLimits(start_ms=milliseconds), trusted=True)


SOCKET = '(import "wasi_snapshot_preview1" "sock_accept" (func)) (memory (export'
HOSTILE: dict[str, Callable[[], Guide]] = {
    "spins later": lambda: later(SPIN),
    "traps later": lambda: later("unreachable"),
    "spins at its start": lambda: slow(300),
    "is no program": lambda: Guide.wasm(b"(module)", trusted=True),
    "imports a socket": lambda: Guide.wasm(changed("(memory (export", SOCKET).encode()),
}
ERRORS = {
    "spins later": (GuideStateError, "25 ms"),
    "traps later": (GuideStateError, "ends it"),
    "spins at its start": (GuideError, "300 ms to start"),
    "is no program": (GuideError, "must have one"),
    "imports a socket": (GuideError, "sock_accept"),
}


@pytest.mark.parametrize(
    "speculation", [None, Speculation.eagle3(num_draft_tokens=3)], ids=["plain", "eagle3"]
)
def test_a_hostile_program_fails_alone(plain: list[list[int]], speculation: Speculation | None) -> None:
    """In one batch with others, whose tokens stay as they were."""
    with LLM(device="cpu", speculation=speculation, engine=EngineConfig(max_batch=16)) as llm:
        hostile = list(HOSTILE)
        outputs = llm.generate(
            [PROMPT] * (len(SAMPLING) + len(hostile)),
            guide=[*guides(), *(HOSTILE[name]() for name in hostile)],
            sampling=[*SAMPLING, *(SAMPLING[0] for _ in hostile)],
        )
        assert [output.token_ids for output in outputs[: len(SAMPLING)]] == plain
        for name, output in zip(hostile, outputs[len(SAMPLING) :], strict=True):
            kind, text = ERRORS[name]
            assert type(output.error) is kind, (name, output)
            assert re.search(text, str(output.error))
        assert [output.token_ids for output in run(llm)] == plain


def test_sequences_are_copies_of_one_start_and_beams_of_each_other() -> None:
    config = ExecutorConfig(max_beam_width=2, max_batch_size=4, guided_decoding_config=GuidedDecodingConfig())
    with Executor(None, config, device="cpu") as executor:
        executor.register_guide("digits", digits(5))
        params = GuidedDecodingParams.handle("digits")
        for sampling in (
            SamplingConfig(num_return_sequences=3, temperature=1.0, seed=4),
            SamplingConfig(2, num_return_sequences=2),
        ):
            output = OutputConfig(exclude_input_from_output=True)
            request = Request(
                tokens_of(PROMPT),
                12,
                sampling_config=sampling,
                guided_decoding_params=params,
                output_config=output,
            )
            responses = until_final(executor, executor.enqueue_request(request))
            answers = [tokens for response in responses for tokens in response.result.output_token_ids]
            assert len(answers) >= 2
            for tokens in answers:
                assert re.fullmatch(r"\d{5}", text_of(tokens))


def text_of(tokens: list[int]) -> str:
    from tokenizers import Tokenizer

    from weft.config import package_model_path

    text: str = Tokenizer.from_file(str(package_model_path() / "tokenizer.json")).decode(tokens)
    return text


def test_beams_refuse_a_program_that_takes_back() -> None:
    """Each digit but zero is replaced by two zeros."""
    when = [token for digit in "123456789" for token in tokens_of(digit)]
    config = ExecutorConfig(max_beam_width=2, max_batch_size=4, guided_decoding_config=GuidedDecodingConfig())
    with Executor(None, config, device="cpu") as executor:
        executor.register_guide("zeros", Guide.wasm(splicing(when, 1, tokens_of("0") * 2), "8", trusted=True))
        params = GuidedDecodingParams.handle("zeros")
        request = Request(
            tokens_of(PROMPT), 12, sampling_config=SamplingConfig(2), guided_decoding_params=params
        )
        (response,) = until_final(executor, executor.enqueue_request(request))
        assert "a beam search can't do" in response.error_msg


def test_a_start_does_not_hold_up_others() -> None:
    """While one program takes all its time to start, another request runs from its beginning to its end."""
    with LLM(device="cpu") as llm, ThreadPoolExecutor(1) as pool:
        llm.generate(PROMPT, sampling=SamplingParams(max_tokens=1))
        guide = slow(1000)
        llm.compile(guide).result()
        for _ in range(10):  # a busy machine may stop the other request for a second, though not each time
            starting = pool.submit(llm.generate, PROMPT, guide=guide)
            time.sleep(0.1)
            assert llm.generate(PROMPT, sampling=SamplingParams(max_tokens=1)).token_ids
            is_first = not starting.done()
            with pytest.raises(GuideError, match="1000 ms to start"):
                starting.result()
            if is_first:
                break
        assert is_first


def test_behind_free_text(plain: list[list[int]]) -> None:
    with LLM(device="cpu", speculation=Speculation.ngram(num_draft_tokens=3)) as llm:
        guides = [Guide.after(trigger, digits(4)) for trigger in (" ", "e")]
        assert len({guide.key for guide in guides}) == 2
        for guide in guides:
            output = llm.generate(PROMPT, guide=guide, sampling=SamplingParams(max_tokens=200))
            assert re.search(r"\d{4}$", output.text) or output.finish_reason == "length"


def test_the_example_in_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: list[list[int]]) -> None:
    """Compiled by the C compiler of the package ziglang, which knows WebAssembly."""
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(tmp_path / "cache"))
    module = tmp_path / "digits.wasm"
    options = ("-target", "wasm32-freestanding", "-Os", "-nostdlib", "-Wl,--no-entry")
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", *options, "-o", str(module), str(EXAMPLES / "wasm_digits.c")],
        check=True,
    )
    with LLM(device="cpu") as llm:
        output = llm.generate(PROMPT, guide=Guide.wasm(module, "6"), sampling=SAMPLING[0])
        assert output.token_ids == plain[0]


def test_programs_start_when_a_slot_is_near() -> None:
    """Forty wait; those that have a slot and two more have begun. Cancelled, they let go of all."""
    guided = GuidedDecodingConfig(programs_ahead=2)
    settings = ExecutorConfig(guided_decoding_config=guided, max_batch_size=2, max_seq_len=512)
    with Executor(None, settings, device="cpu") as executor:
        executor.register_guide("digits", digits(9)).result()
        programs = executor.client.engine.scheduler.waiting.starts
        prompt = tokens_of(PROMPT)
        busy = executor.enqueue_requests([Request(prompt, 400, end_id=-1) for _ in range(2)])
        params = GuidedDecodingParams.handle("digits")
        many = SamplingConfig(num_return_sequences=20, temperature=1.0, seed=1)
        numbers = executor.enqueue_requests(
            [Request(prompt, 20, guided_decoding_params=params) for _ in range(40)]
            + [Request(prompt, 20, guided_decoding_params=params, sampling_config=many, client_id=5)]
        )
        most = 0
        until = time.monotonic() + 60
        while executor.get_num_responses_ready(busy[0]) == 0:
            assert time.monotonic() < until
            most = max(most, executor.client.call(lambda: len(programs._held)))
            time.sleep(0.01)
        assert most == 2
        for number in busy:
            until_final(executor, number)
        answers = [response for number in numbers for response in until_final(executor, number)]
        assert len(answers) == 60 and not any(response.has_error() for response in answers)
        assert executor.client.call(lambda: (programs.held_bytes, len(programs._siblings))) == (0, 0)
        left = executor.enqueue_requests([Request(prompt, 20, guided_decoding_params=params)] * 30)
        for number in left:
            executor.drop_request(number)
        assert executor.client.call(lambda: len(programs)) == 0
        assert executor.client.call(lambda: len(programs._held)) == 0


@pytest.mark.parametrize(
    "graphs", ["one", *(pytest.param(graphs, marks=pytest.mark.slow) for graphs in ("split", "none"))]
)
def test_a_slot_does_not_keep_a_program(graphs: str) -> None:
    """Neither where others go on, without guides, nor where nobody is left."""
    with LLM(device="cpu", engine=EngineConfig(max_batch=2, graphs=graphs)) as llm:  # type: ignore[arg-type]
        state, engine = llm.engine.grammar.state, llm.engine
        llm.compile(digits(4)).result()
        pieces = llm.stream(PROMPT, sampling=SamplingParams(max_tokens=900, min_tokens=890))
        next(pieces)
        assert llm.generate(PROMPT, guide=digits(4)).text.isdigit()
        next(pieces)
        assert llm.client.call(lambda: [state.is_guided(slot) for slot in range(2)]) == [False, False]
        assert len(engine.running) == 1
        assert len(list(pieces)) > 5
        assert llm.generate(PROMPT, guide=Guide.regex("[0-9]{3}")).text.isdigit()
        assert llm.client.call(lambda: [state.is_guided(slot) for slot in range(2)]) == [False, False]
        assert llm.generate([PROMPT] * 3, guide=digits(5))[2].text.isdigit()
