"""Clients compile in turn, and refused guides are remembered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support.grammar.grammars import small_vocabulary
from weft.errors import CapacityError, GuideError, UnavailableError
from weft.grammar import CompileLimits, Guide, GuideCompiler
from weft.grammar.compile.cache import Refusals


def test_refusals_are_few_and_end() -> None:
    guides = [Guide.regex(f"a{i}") for i in range(3)]
    kept = Refusals(limit=2)
    for guide in guides:
        kept.put(guide, f"no {guide.source}")
    assert [kept.get(guide) for guide in guides] == [None, "no a1", "no a2"]
    kept.put(Guide.matcher(lambda: None), "of the program")  # type: ignore[arg-type, return-value]
    assert len(kept) == 2
    over = Refusals(keep_s=0)
    over.put(guides[0], "no")
    assert over.get(guides[0]) is None


class Held:
    """A backend whose compiles wait for one another, as told; "bad" is refused."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.begun: list[str] = []
        self.may_end = threading.Semaphore(0)
        self.has_begun = threading.Semaphore(0)

    def compile(self, guide: Guide) -> Any:
        self.begun.append(guide.source)
        self.has_begun.release()
        assert self.may_end.acquire(timeout=60)
        raise GuideError("refused")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[GuideCompiler, Held]]:
    backend = Held()
    monkeypatch.setattr("weft.grammar.compile.compiler.make_backend", lambda *_: backend)
    with GuideCompiler(small_vocabulary(), workers=2, limits=CompileLimits(max_waiting=8)) as compiler:
        yield compiler, backend
        backend.may_end.release(100)


def test_eight_guides_of_one_client_delay_anothers_by_one(held: tuple[GuideCompiler, Held]) -> None:
    compiler, backend = held
    futures = []
    for i in range(10):
        futures.append(compiler.submit(Guide.regex(f"a{i}"), client=1))
        if i < 2:
            assert backend.has_begun.acquire(timeout=60)
    futures.append(compiler.submit(Guide.regex("innocent"), client=2))
    futures.append(compiler.submit(Guide.regex("a9"), client=3))  # another's waits for it no longer, either
    with pytest.raises(CapacityError, match=r"8 guides of this client wait .*CompileLimits\.max_waiting"):
        compiler.submit(Guide.regex("a10"), client=1).result(timeout=60)
    for _ in range(3):
        backend.may_end.release()
        assert backend.has_begun.acquire(timeout=60)
    assert set(backend.begun[:2]) == {"a0", "a1"}
    assert backend.begun[2] == "innocent"
    assert "a9" in backend.begun[3:5]  # before a2 to a8
    backend.may_end.release(20)
    for future in futures:
        with pytest.raises(GuideError, match="refused"):
            future.result(timeout=60)


def test_a_refused_guide_is_not_compiled_again(held: tuple[GuideCompiler, Held]) -> None:
    compiler, backend = held
    backend.may_end.release(5)
    for client in (1, 1, 2):
        with pytest.raises(GuideError, match="refused"):
            compiler.submit(Guide.regex("bad"), client).result(timeout=60)
    assert backend.begun == ["bad"]


def test_a_clients_compiles_past_their_time_stop_that_client_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Held()
    monkeypatch.setattr("weft.grammar.compile.compiler.make_backend", lambda *_: backend)
    limits = CompileLimits(time_s=0.1, max_abandoned=4)
    with GuideCompiler(small_vocabulary(), limits=limits) as compiler:
        for i in range(2):
            with pytest.raises(GuideError, match=r"did not compile in 0\.1 s"):
                compiler.submit(Guide.regex(f"slow{i}"), client=1).result(timeout=60)
        with pytest.raises(UnavailableError, match="2 compiles are past their time limit"):
            compiler.submit(Guide.regex("more"), client=1).result(timeout=60)
        with pytest.raises(
            GuideError, match=r"did not compile in 0\.1 s"
        ):  # remembered, and nobody else's fault
            compiler.submit(Guide.regex("slow0"), client=2).result(timeout=60)
        other = compiler.submit(Guide.regex("other"), client=2)
        for _ in range(3):
            assert backend.has_begun.acquire(timeout=60)
        assert "other" in backend.begun
        backend.may_end.release(100)
        with pytest.raises(GuideError):
            other.result(timeout=60)
