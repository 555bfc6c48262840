"""An engine whose graphs are answered by a thread that polls gives what one with host nodes gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.engine.requests import settle, told
from weft import LLM, EngineConfig, Guide, InputError, SamplingParams, Speculation
from weft.executor import Executor, ExecutorConfig, Request
from weft.runtime import CpuRuntime

DRAFTERS: dict[str, Callable[[], Speculation]] = {
    "none": Speculation.none,
    "eagle3": lambda: Speculation.eagle3(num_draft_tokens=3, guide_drafts=True),
    "ngram": lambda: Speculation.ngram(num_draft_tokens=2),
    "forced+eagle3": lambda: Speculation.forced(Speculation.eagle3(num_draft_tokens=2)),
}
SCHEDULES = [
    ("inline", 0),
    ("threads", 0),
    ("ahead", 0),
    ("ahead", 1),
    *(("random", seed) for seed in range(4)),
]
GUIDES = [Guide.json(), None, Guide.regex("(ab|[0-9]{1,3}-)*END"), Guide.choice(["north", "northwest"])]
PROMPTS = ["The first: ", "A second one. ", "1-2-", "Where to? "]
POLLING = EngineConfig(max_batch=4, max_seq_len=128, host_tasks="polling")


def sampling() -> list[SamplingParams]:
    return [SamplingParams(max_tokens=12, temperature=float(i % 2), seed=i) for i in range(len(PROMPTS))]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_schedule_gives_the_tokens_of_callbacks(drafter: str, schedules: Callable[..., None]) -> None:
    config = EngineConfig(max_batch=4, max_seq_len=128)
    with LLM(device="cpu", speculation=DRAFTERS[drafter](), engine=config) as llm:
        settle(llm)
        expected = told(llm.generate(PROMPTS, guide=GUIDES, sampling=sampling()))
        assert llm.engine.config.host_tasks == "callback"
    with LLM(device="cpu", speculation=DRAFTERS[drafter](), engine=POLLING) as llm:
        assert llm.engine.config.host_tasks == "polling"
        for schedule, seed in SCHEDULES:
            settle(llm)
            schedules(schedule, seed)
            found = told(llm.generate(PROMPTS, guide=GUIDES, sampling=sampling()))
            assert found == expected, f"{schedule}, seed {seed}"
        settle(llm)


def test_matchers_in_python_are_polled_for_too(schedules: Callable[..., None]) -> None:
    """They need the GIL on the thread that polls."""
    guide = Guide.recognizer(Digits)
    with LLM(device="cpu", engine=POLLING) as llm:
        for schedule in ("inline", "threads"):
            settle(llm)
            schedules(schedule)
            for output in llm.generate(PROMPTS, guide=guide, sampling=SamplingParams(max_tokens=20)):
                assert output.error is None and len(output.text) == 6 and output.text.isdigit()
        settle(llm)


class Digits:
    """Six digits, byte by byte."""

    def __init__(self) -> None:
        self.text = b""

    def byte_allowed(self, byte: int) -> bool:
        return len(self.text) < 6 and byte in b"0123456789"

    def push_byte(self, byte: int) -> None:
        self.text += bytes([byte])

    def pop_bytes(self, count: int) -> None:
        self.text = self.text[: len(self.text) - count]

    def special_allowed(self, token: int) -> bool:
        return len(self.text) == 6


def test_a_device_that_can_not_has_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        CpuRuntime, "prepare_polling", lambda self: "the device has no stream memory operations"
    )
    with LLM(device="cpu", engine=POLLING) as llm:
        assert llm.engine.config.host_tasks == "callback"
        assert llm.generate("1", guide=Guide.regex("[0-9]{8}")).text.isdigit()


def test_closing_with_replays_in_flight(schedules: Callable[..., None]) -> None:
    for schedule in ("inline", "threads"):
        schedules(schedule)
        llm = LLM(device="cpu", speculation=Speculation.eagle3(), engine=POLLING)
        stream = llm.stream("x", guide=Guide.regex("[a-z]{60,}"), sampling=SamplingParams(max_tokens=100))
        for _ in range(5):
            next(stream)
        llm.close()


def test_an_executor_has_the_setting() -> None:
    with Executor(None, ExecutorConfig(host_tasks="polling"), device="cpu") as executor:
        assert executor.client.engine.config.host_tasks == "polling"
        (response,) = executor.await_responses(executor.enqueue_request(Request([5, 6, 7], 3, end_id=-1)))
        assert len(response.result.output_token_ids[0]) == 6


def test_another_word_is_refused() -> None:
    with pytest.raises(InputError, match="host_tasks is 'spin'"):
        EngineConfig(host_tasks="spin")  # type: ignore[arg-type]
