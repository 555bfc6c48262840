"""What a request may hold is bounded before it is read: prompts by their length, words by number and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from weft import LLM, EngineConfig
from weft.client import ModelText
from weft.errors import CapacityError, InputError
from weft.executor import Executor, ExecutorConfig, Request, SamplingConfig

TOO_LONG = "the prompt has {} tokens, but max_seq_len is 128"


class Unread(Sequence[int]):
    """A long list of ids that must not be read; what it begins with tells it from a list of prompts."""

    def __len__(self) -> int:
        return 10**7

    def __getitem__(self, index: Any) -> Any:
        if index != 0:
            raise AssertionError("read")
        return 5


@pytest.fixture(scope="module")
def executor() -> Any:
    with Executor(None, ExecutorConfig(max_seq_len=128, max_words=20, max_word_bytes=400)) as made:
        yield made


@pytest.fixture(scope="module")
def llm() -> Any:
    with LLM(engine=EngineConfig(max_seq_len=128, max_words=20, max_word_bytes=400)) as made:
        yield made


def error_of(executor: Executor, request: Request) -> str:
    [answer] = executor.await_responses(executor.enqueue_request(request), timeout=60)
    assert answer.has_error()
    return answer.error_msg


def test_a_long_prompt_fails_by_its_length(executor: Executor) -> None:
    """Its entries, which are no ids, have not been looked at."""
    assert TOO_LONG.format(100_000) in error_of(executor, Request([5.5] * 100_000, 8))  # type: ignore[list-item]
    with pytest.raises(InputError, match="has 4194305 token ids; it may have 4194304"):
        Request([5] * (2**22 + 1), 8)
    with pytest.raises(InputError, match=r"holds 5\.5"):
        Request([5.5] * 100, 8)  # type: ignore[list-item]


def test_a_prompt_that_fits_is_read() -> None:
    text = ModelText(10, (0,), max_seq_len=10**6)
    with pytest.raises(InputError, match=r"holds 5\.5"):
        text.prompt((5,) * 99_999 + (5.5,))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="holds -1"):
        text.prompt((5,) * 99_999 + (-1,))
    with pytest.raises(InputError, match="holds token id 10;"):
        text.prompt((5,) * 99_999 + (10,))
    assert text.prompt((5,) * 100_000) == (5,) * 100_000


def test_drafts_are_read_as_far_as_an_answer_may_be() -> None:
    text = ModelText(10, (0,), max_seq_len=3)
    assert text.expected((5,) * 10 + (5.5,)) == (5, 5, 5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"given holds 5\.5"):
        text.expected((5, 5.5))  # type: ignore[arg-type]


@pytest.mark.parametrize("prompt", [Unread(), "a" * 10**6, "é" * 10**6, "\ud800" * 10**6])
def test_the_llm_looks_at_the_length_first(llm: LLM, prompt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("tokenized")

    monkeypatch.setattr(type(llm.tokenizer), "encode", read)
    with pytest.raises(
        CapacityError, match=r"the prompt has 10{6,7} (tokens|bytes or more), but max_seq_len"
    ):
        llm.generate(prompt)


def test_a_long_conversation_is_not_tokenized(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm.tokenizer, "chat_template", "{{ messages[0].content }}")
    assert llm.chat_tokens([{"role": "user", "content": "a"}])
    with pytest.raises(CapacityError, match="bytes or more"):
        llm.chat([{"role": "user", "content": "a" * 10**6}])


@pytest.mark.parametrize("name", ["bad_words", "stop_words"])
@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([f"w{i}" for i in range(21)], "has 21 entries; a request may have 20"),
        ([[i] for i in range(21)], "has 21 entries; a request may have 20"),
        (["a" * 401], "holds 401 bytes"),
        (["é" * 201], "holds 402 bytes"),
        ([[7] * 101], "holds 404 bytes"),
        (["a" * 300, [7] * 26], "holds 404 bytes"),
    ],
)
def test_words_are_bounded(executor: Executor, llm: LLM, name: str, words: Any, text: str) -> None:
    assert text in error_of(executor, Request([5], 8, **{name: words}))
    if name == "bad_words" or all(isinstance(word, str) for word in words):
        from weft import SamplingParams

        own = {"stop_words": "stop"}.get(name, name)
        with pytest.raises(InputError, match=text):
            llm.generate("a", sampling=SamplingParams(**{own: words}))


def test_very_many_words_are_not_looked_at() -> None:
    for name in ("bad_words", "stop_words"):
        with pytest.raises(InputError, match=f"{name} has 100000 entries; it may have 65536"):
            Request([5], 8, **{name: [5.5] * 100_000})


def test_stop_tokens_are_bounded(llm: LLM) -> None:
    from weft import SamplingParams

    with pytest.raises(InputError, match="stop_token_ids has 21 entries"):
        llm.generate("a", sampling=SamplingParams(stop_token_ids=range(100, 121)))


def test_bad_words_that_no_tokens_hold_are_not_tokenized() -> None:
    with Executor(None, ExecutorConfig(max_seq_len=128)) as executor:
        text = error_of(executor, Request([5], 8, bad_words=["a b " * 10_000]))
        assert "bad_words hold 40000 bytes of text; 1024 tokens of this model" in text
        assert "there is room for 1024" in error_of(executor, Request([5], 8, bad_words=["a b " * 1000]))


@pytest.mark.parametrize(
    "bias",
    [
        torch.zeros(8, device="meta"),
        torch.zeros(8).to_sparse(),
    ],
)
def test_a_bias_without_numbers_is_an_error(bias: torch.Tensor) -> None:
    with pytest.raises(InputError, match="embedding_bias must be a dense tensor"):
        Request([1], 1, embedding_bias=bias)


def test_bounds_say_why() -> None:
    with pytest.raises(InputError, match=r"max_tokens is 1000000000000; it must be .*below 2\*\*31"):
        Request([1], 10**12)
    for share in (1e-300, -1, 1.5):
        with pytest.raises(
            InputError, match=rf"top_p is {share}; it must be 0 \(not asked for\), or above 0 \(from 2"
        ):
            SamplingConfig(top_p=share)
    assert SamplingConfig(top_p=0).is_greedy and SamplingConfig(top_p=2**-126).top_p == 2**-126
    for dtype, values in (("nonsense", [1.0]), ("float32", ["a"]), ("float32", [[1.0], [2.0, 3.0]])):
        with pytest.raises(InputError, match="a tensor's"):
            Request.from_dict(
                {
                    "input_token_ids": [1],
                    "max_tokens": 1,
                    "embedding_bias": {"dtype": dtype, "values": values},
                }
            )
