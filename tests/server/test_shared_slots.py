"""Two keys: one that has all slots yields to the other, whose answers are those that it gets alone."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from support.server.asking import ENDLESS, PROMPT, ask
from support.server.running import Running, running
from support.server.sockets import wait_for
from weft import EngineConfig
from weft.server.models import ServedModelConfig, build
from weft.server.settings import ServerConfig

KEYS = {"ada": "key-of-ada", "bo": "key-of-bo"}


def complete(server: Running, name: str, seed: int, most: int) -> dict[str, Any]:
    """A completion of a tenant's."""
    body = {**ENDLESS, "prompt": PROMPT, "seed": seed, "max_tokens": most}
    headers = {"Authorization": f"Bearer {KEYS[name]}", "Content-Type": "application/json"}
    status, answer = ask(f"{server.url}/v1/completions", body, headers=headers)
    assert status == 200, answer
    choice: dict[str, Any] = answer["choices"][0]
    return choice


@pytest.mark.parametrize("shares", [True, False])
def test_a_key_that_holds_all_slots_yields_to_another(shares: bool) -> None:
    served = build(ServedModelConfig(engine=EngineConfig(max_batch=4, shares_slots=shares)))
    try:
        with running({served.name: served}, ServerConfig(api_keys=KEYS)) as server:
            alone = [complete(server, "ada", seed, 400) for seed in range(6)]
            bos = complete(server, "bo", 9, 12)
            answers: dict[int, Any] = {}
            threads = [
                threading.Thread(
                    target=lambda seed=seed: answers.update({seed: complete(server, "ada", seed, 400)})
                )
                for seed in range(6)
            ]
            for thread in threads:
                thread.start()
            engine = served.client.engine
            wait_for(lambda: sum(len(request.output.token_ids) > 2 for request in engine.running) == 4)
            assert complete(server, "bo", 9, 12) == bos
            assert (not answers) == shares
            for thread in threads:
                thread.join(120)
            assert [answers[seed] for seed in range(6)] == alone
    finally:
        served.close()


def test_a_server_shares_its_slots_unless_told_otherwise() -> None:
    assert ServedModelConfig().engine.shares_slots
    assert not EngineConfig().shares_slots
