"""Guides that can't be tried now: a 503 that says when to ask again, and the same guide passes then."""

from __future__ import annotations

import http.client
import json
import os
import signal
from typing import Any

import pytest

from support.server.running import Running, running
from weft import EngineConfig
from weft.grammar.compile.trial import Trial
from weft.server.models import ServedModelConfig, build


def posted(server: Running, guide: dict[str, Any], **fields: Any) -> tuple[int, str | None, Any]:
    """The status, `Retry-After` and what was said."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = {"prompt": "a", "max_tokens": 4, "guide": guide, **fields}
    connection.request("POST", "/v1/completions", json.dumps(body))
    answer = connection.getresponse()
    said = answer.read().decode()
    connection.close()
    return answer.status, answer.headers["retry-after"], said


@pytest.mark.slow
def test_a_helper_that_is_not_there_is_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(ServedModelConfig(name="tiny", engine=EngineConfig(untrusted_guides=True)))
    compiler = model.client.compiler
    assert compiler is not None and isinstance(compiler._trial, Trial)
    helpers = compiler._trial._helpers
    try:
        model.warm_up()
        with running({"tiny": model}) as server:
            monkeypatch.setattr("weft.grammar.compile.compiler.HELPER_WAIT_S", 0.5)
            # It is there when the server is, so no guide waits for it.
            assert posted(server, {"regex": "[0-9]{3}"})[0] == 200
            first = helpers.pid
            os.kill(first, signal.SIGKILL)
            while helpers.pid == first:
                pass
            os.kill(helpers.pid, signal.SIGSTOP)
            for stream in (False, True):
                status, retry_after, said = posted(server, {"regex": "[0-9]{4}"}, stream=stream)
                error = json.loads(said)["error"]
                assert (status, error["type"], error["code"]) == (503, "overloaded_error", "unavailable")
                assert retry_after is not None and int(retry_after) > 0
                assert "send the guide again later" in error["message"]
            assert posted(server, {"regex": "[0-9]{3}"})[0] == 200, "what is compiled is"
            os.kill(helpers.pid, signal.SIGCONT)
            compiler.wait()
            assert posted(server, {"regex": "[0-9]{4}"})[0] == 200
    finally:
        model.close()
