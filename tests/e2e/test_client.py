"""The client that lies under `LLM` and `Executor`, as another front would use it."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from queue import SimpleQueue
from typing import Any

import pytest

from weft import (
    CapacityError,
    EngineConfig,
    ExecutorError,
    Guide,
    GuideError,
    InputError,
    SamplingParams,
    Speculation,
)
from weft.client import ClientLimits, EngineClient, ModelSource, Request, Response
from weft.client.detokenizer import Detokenizer, Pieces
from weft.core import Output
from weft.grammar.base import CompiledGuide

PROMPT = "Text: Ada is a painter.\nSchema: "
GREEDY = SamplingParams(max_tokens=10)


def make(limits: ClientLimits | None = None, max_batch: int = 4) -> EngineClient:
    config = EngineConfig(max_batch=max_batch, max_seq_len=256)
    source = ModelSource.of(None)
    return EngineClient.build(source, "cpu", "auto", Speculation.none(), config, limits or ClientLimits())


@pytest.fixture(scope="module")
def client() -> Iterator[EngineClient]:
    made = make()
    yield made
    made.close()


def tokens_of(client: EngineClient, handle: Response) -> list[int]:
    """What a request that does not stream says."""
    ((_, (delta,)),) = client.responses.take([handle.id], 30)
    assert delta.is_final and delta.sequence is not None
    return delta.sequence.output.token_ids


def test_a_request_is_followed_by_its_handle(client: EngineClient) -> None:
    """By waiting, by a listener, and in an event loop: the same tokens."""
    waited, listened, followed = client.submit(
        [Request(PROMPT, GREEDY, streams=streams) for streams in (False, True, True)]
    )
    expected = tokens_of(client, waited)

    async def follow() -> list[int]:
        found: list[int] = []
        async for delta in client.follow(followed):
            assert delta.sequence is not None
            found += delta.sequence.output.token_ids[delta.start : delta.end]
        return found

    assert asyncio.run(follow()) == expected
    client.drop([listened])
    told: SimpleQueue[Response] = SimpleQueue()
    (listened,) = client.submit([Request(PROMPT, GREEDY, streams=True)], told.put)
    text = client.built.text
    assert text.tokenizer is not None and text.vocabulary is not None
    detokenizer = Detokenizer(text.tokenizer, text.vocabulary)
    pieces, said, last = Pieces(detokenizer, listened), "", None
    while last is None:
        for delta in client.responses.take_now(told.get(timeout=60)) or ():
            piece = pieces.piece(delta)
            said, last = said + piece.text, piece.output
    assert last.token_ids == expected and last.text == said
    detokenizer.close()


def text_of(client: EngineClient, request: Request) -> tuple[Output, str]:
    """The output of a streamed request, and the text of its pieces."""
    told: SimpleQueue[Response] = SimpleQueue()
    (response,) = client.submit([request], told.put)
    text = client.built.text
    assert text.tokenizer is not None and text.vocabulary is not None
    with closing(Detokenizer(text.tokenizer, text.vocabulary)) as detokenizer:
        pieces, shown, last = Pieces(detokenizer, response), "", None
        while last is None:
            for delta in client.responses.take_now(told.get(timeout=60)) or ():
                piece = pieces.piece(delta)
                shown, last = shown + piece.text, piece.output
    return last, shown


def test_a_text_stop_word_is_cut_beside_one_of_token_ids(client: EngineClient) -> None:
    whole, _ = text_of(client, Request(PROMPT, GREEDY))
    word = whole.text[len(whole.text) // 2 :][:2]
    answer, shown = text_of(client, Request(PROMPT, GREEDY, stop_words=[word, [1, 1, 1]], streams=True))
    assert answer.stopped_by == word
    assert answer.text == shown == whole.text[: whole.text.index(word)]


def test_the_text_ends_at_the_stop_word_that_counted(client: EngineClient) -> None:
    """Not at the same word before `min_tokens`."""
    biased: Any = {"temperature": 0.0, "max_tokens": 10, "logit_bias": {5: 100.0}}
    whole, _ = text_of(client, Request(PROMPT, SamplingParams(**biased)))
    assert whole.token_ids == [5] * 10
    word = whole.text[: len(whole.text) // 10]
    sampling = SamplingParams(**biased, min_tokens=4, stop=[word])
    for streams in (False, True):
        answer, shown = text_of(client, Request(PROMPT, sampling, streams=streams))
        assert (answer.stopped_by, len(answer.token_ids)) == (word, 5)
        assert answer.text == shown == word * 4


def test_what_is_wrong_with_a_request_is_its_handles(client: EngineClient) -> None:
    """Of several the others go on; a front's own refusal and tag come back."""
    refused = InputError("this front takes no such request")
    long, own, fine = client.submit(
        [
            Request([5] * 300, GREEDY),
            Request((), tag="mine", refusal=refused),
            Request([5, 6], GREEDY),
        ]
    )
    assert isinstance(long.error, CapacityError) and long.is_over
    assert own.error is refused and own.request.tag == "mine"
    assert client.responses.take([own.id], 30)[0][1][0].error == str(refused)
    assert len(tokens_of(client, fine)) == 10
    client.drop([long])
    with pytest.raises(CapacityError):
        client.prepare([Request([5] * 300, GREEDY)])


def test_cancelled_requests_keep_what_there_is_and_dropped_ones_nothing(client: EngineClient) -> None:
    endless = SamplingParams(max_tokens=240)
    kept, gone = client.submit([Request([5, 6], endless), Request([5, 6], endless)])
    client.cancel([kept])
    client.drop([gone])
    assert len(tokens_of(client, kept)) < 240
    while not client.is_idle:
        pass
    assert client.responses.is_empty
    assert client.responses.take([gone.id], 0) == [(None, [])]


def test_observers_hear_of_every_step(client: EngineClient) -> None:
    heard: list[str] = []
    came: list[int] = []
    client.observe(lambda record, took: heard.append(threading.current_thread().name))
    client.observe(lambda record, took: came.extend(request.id for request in took))
    (handle,) = client.submit([Request([5, 6], GREEDY)])
    tokens_of(client, handle)
    assert set(heard) == {"weft-engine"} and len(heard) >= 10 and came == [handle.id]


def test_limits_hold_for_every_front() -> None:
    client = make(ClientLimits(max_sequences=2, max_queue_size=2), max_batch=1)
    many = SamplingParams(max_tokens=10, n=3)
    with pytest.raises(InputError, match="a request has 2 sequences at most"):
        client.prepare([Request([5], many)])
    with pytest.raises(CapacityError, match="the queue is full"):
        client.submit([Request([5], GREEDY)] * 3)
    assert client.responses.is_empty
    client.close()
    with pytest.raises(ExecutorError, match="shut down"):
        client.submit([Request([5], GREEDY)])


def test_a_dropped_client_ends_its_thread() -> None:
    client = make()
    client.submit([Request([5], SamplingParams(max_tokens=240), Guide.regex("[a-z ]+"))])
    threads = [thread for thread in threading.enumerate() if thread.name == "weft-engine"]
    dropped = weakref.ref(client)
    del client
    gc.collect()
    assert dropped() is None
    threads[-1].join(timeout=60)
    assert not threads[-1].is_alive()


def test_a_command_that_fails_leaves_no_caller_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands behind it are told that the executor's loop has ended."""
    client = make()
    is_busy, go_on = threading.Event(), threading.Event()
    told: list[Exception] = []

    def keep_busy() -> None:
        is_busy.set()
        go_on.wait(60)

    def call(function: Callable[[], object]) -> None:
        try:
            client.call(function)
        except ExecutorError as error:
            told.append(error)

    def fail(_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(client.engine, "submit", fail)
    first = threading.Thread(target=call, args=(keep_busy,))
    first.start()
    assert is_busy.wait(60)
    client.submit([Request(PROMPT, GREEDY)])
    last = threading.Thread(target=call, args=(list,))
    last.start()
    time.sleep(0.5)  # until its command waits; one that comes later is refused, which also passes
    go_on.set()
    for thread in (first, last):
        thread.join(60)
        assert not thread.is_alive()
    assert len(told) == 1 and "planted" in str(told[0])
    client.close()


def test_a_guide_whose_future_is_cancelled_ends_its_request_alone(client: EngineClient) -> None:
    compiling: Future[CompiledGuide] = Future()
    guided, free = client.submit([Request(PROMPT, GREEDY, guide=compiling), Request(PROMPT, GREEDY)])
    assert compiling.cancel()
    ((_, (delta,)),) = client.responses.take([guided.id], 30)
    assert delta.sequence is not None and isinstance(delta.sequence.output.error, GuideError)
    assert len(tokens_of(client, free)) == 10
