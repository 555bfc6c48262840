"""Requests of strangers, one after another beside a neighbour: each ends by itself, the neighbour gets the answer that
it gets alone, and memory comes back. `benchmarks/strangers.py` has the requests, and measures the neighbour's waits.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from strangers import Neighbour, Stranger, ends, everything, resident_mib
from weft.errors import MAX_MESSAGE, WeftError
from weft.executor import (
    Executor,
    ExecutorConfig,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    GuideType,
    Request,
    Response,
)

pytestmark = pytest.mark.slow  # its guides are tried in processes

MOST_S = 60.0
MORE_MIB = 200
"""Of all together. Allocators keep some, 70 MiB alone and 105 after other tests, and no more of ten times as many."""


@dataclass
class Served:
    """An executor that strangers send to, the neighbour, and what there was before they came."""

    executor: Executor
    neighbour: Neighbour
    first_mib: float


def settled_mib(executor: Executor) -> float:
    """Memory without what the guides' cache holds on purpose."""
    assert executor.client.compiler is not None
    executor.client.compiler.cache.clear()
    ctypes.CDLL(None).malloc_trim(0)
    return resident_mib()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    config = ExecutorConfig(
        guided_decoding_config=GuidedDecodingConfig(untrusted=True), max_batch_size=4, max_seq_len=1024
    )
    with Executor(None, config, device="cpu") as executor:
        for text in ("warm", "[a-z]{3}"):
            params = GuidedDecodingParams(GuideType.REGEX, text)
            executor.await_responses(executor.enqueue_request(Request([0], 8, guided_decoding_params=params)))
        neighbour = Neighbour(executor)
        time.sleep(1.0)
        yield Served(executor, neighbour, settled_mib(executor))
        neighbour.end()
        assert len(neighbour.answers) == 1, "the neighbour's tokens changed"
        assert neighbour.num_answers > 10


def last_response(executor: Executor, number: int) -> Response:
    deadline = time.monotonic() + MOST_S
    while time.monotonic() < deadline:
        for response in executor.await_responses(number, timeout=1.0):
            if ends(response):
                return response
    raise AssertionError(f"no answer in {MOST_S} s")


@pytest.mark.parametrize("stranger", [*everything()], ids=str)
def test_a_stranger_gets_an_answer_or_an_error(served: Served, stranger: Stranger) -> None:
    try:
        number = served.executor.enqueue_request(stranger.make())
    except WeftError as error:
        said = str(error)
    else:
        response = last_response(served.executor, number)
        said = response.error_msg if response.has_error() else ""
        assert said or response.result.finish_reasons
    assert len(said) < 2 * MAX_MESSAGE
    assert said.isprintable(), "a message is one line"
    if served.neighbour.answers:
        assert len(served.neighbour.answers) == 1, "the neighbour's tokens changed"


def test_memory_comes_back(served: Served) -> None:
    """After all of them; those that run alone in this process have nothing to give back."""
    assert settled_mib(served.executor) - served.first_mib < MORE_MIB
