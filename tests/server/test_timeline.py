"""/v1/timeline: a tenant sees the work of its own requests alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.server.asking import ENDLESS, ask
from support.server.running import Running, running
from support.server.sockets import raw, wait_for
from weft.server.models import ServedModel
from weft.server.settings import ServerConfig
from weft.server.timeline import Span, parts_of, with_others, within
from weft.trace import Slice

ADA, BO = "key-of-ada", "key-of-bo"
GUIDED = {**ENDLESS, "ignore_eos": False, "guided_regex": "[a-z ]{2000}"}


@pytest.fixture(scope="module")
def keyed(models: dict[str, ServedModel]) -> Iterator[Running]:
    with running(models, ServerConfig(api_keys={"ada": ADA, "bo": BO})) as started:
        yield started


def seen(server: Running, key: str, query: str = "ms=80") -> dict[str, Any]:
    status, answer = ask(f"{server.url}/v1/timeline?{query}", headers={"Authorization": f"Bearer {key}"})
    assert status == 200, answer
    return answer


def idle(server: Running) -> None:
    wait_for(lambda: all(model.client.is_idle for model in server.state.models.values()))


def num_running(server: Running, model: str = "tiny") -> int:
    return len(server.state.models[model].client.engine.running)


def test_a_tenant_sees_its_own_work_and_others_see_none(keyed: Running) -> None:
    idle(keyed)
    with raw(keyed, GUIDED, ADA):
        wait_for(lambda: num_running(keyed))
        its_own, foreign = seen(keyed, ADA), seen(keyed, BO)
    assert {"grammar stream", "model stream"} <= {track["name"] for track in its_own["tracks"]}
    assert any(re.match("target_forward", piece["label"]) for piece in its_own["slices"])
    assert its_own["shared"] == []
    assert foreign == {"tracks": [], "slices": [], "shared": []}


@pytest.mark.parametrize("model", ["tiny", "plain"])
def test_shared_iterations_have_a_begin_and_an_end_alone(keyed: Running, model: str) -> None:
    idle(keyed)
    with (
        raw(keyed, GUIDED, ADA),
        raw(keyed, {**GUIDED, "model": model}, BO),
    ):
        wait_for(lambda: num_running(keyed) + num_running(keyed, "plain") == 2)
        for key in (ADA, BO) if model == "tiny" else (ADA,):
            found = seen(keyed, key)
            assert found["tracks"] == found["slices"] == []
            assert len(found["shared"]) > 1
            assert all(set(piece) == {"begin_us", "end_us"} for piece in found["shared"])
            ends = [piece["end_us"] for piece in found["shared"]]
            assert ends == sorted(ends)


def test_a_recording_waits_for_an_answer_that_begins_later(keyed: Running) -> None:
    idle(keyed)
    with ThreadPoolExecutor(1) as pool:
        recording = pool.submit(seen, keyed, ADA, "ms=1&wait_ms=2000")
        wait_for(lambda: all(each._marks is not None for each in keyed.state.occupancies.values()))
        short = {"prompt": "Text: ", "max_tokens": 8, "ignore_eos": True}
        assert ask(f"{keyed.url}/v1/completions", short, headers={"Authorization": f"Bearer {ADA}"})[0] == 200
        labels = [piece["label"] for piece in recording.result()["slices"]]
    assert sum(label.startswith("target_forward") for label in labels) > 4
    assert ask(f"{keyed.url}/v1/timeline?wait_ms=-1", headers={"Authorization": f"Bearer {ADA}"})[0] == 400


ME, OTHER = 1, 2


def span(begin: float, end: float, *clients: int | None) -> Span:
    return Span(begin, end, frozenset(clients))


def test_windows_have_no_other_client() -> None:
    spans = [
        span(0, 1),
        span(1, 2, ME),
        span(2, 3, ME, OTHER),
        span(3, 4, OTHER),
        span(4, 5, ME),
        span(5, 6, None),
    ]
    assert parts_of(spans, ME) == ([(0, 2), (4, 5)], [(2, 3)])
    assert parts_of(spans, OTHER) == ([(0, 1), (3, 4)], [(2, 3)])


def test_another_engines_clients_count_too() -> None:
    spans = with_others([span(0, 1, ME), span(1, 2, ME), span(2, 3, ME)], [span(0, 1.5, OTHER), span(1.5, 9)])
    assert [set(s.clients) for s in spans] == [{ME, OTHER}, {ME, OTHER}, {ME}]


def test_slices_that_reach_out_of_a_window_are_left_out() -> None:
    slices = [
        Slice(f"{begin}", "kernel", 1, 1, begin, begin + 2.0) for begin in (9.0, 0.0, 1.0, 5.0, 6.0, 3.0)
    ]
    assert [piece.begin_us for piece in within(slices, [(1, 4), (5, 8)])] == [1.0, 5.0, 6.0]
