"""A process that was forked: what needs threads says so at once, and its end is not its parent's."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, json, os, sys
from weft import LLM, Guide
from weft.executor import Executor, ExecutorConfig, GuidedDecodingConfig, Request

config = ExecutorConfig(guided_decoding_config=GuidedDecodingConfig(untrusted=True), max_batch_size=2)
executor, llm = Executor(None, config, device="cpu"), LLM(device="cpu")
compiler, engine = executor.client.compiler, llm.engine

def answer():
    (response,) = executor.await_responses(executor.enqueue_request(Request([5, 6, 7], 3, end_id=-1)))
    return response.result.output_token_ids

before, number = answer(), executor.enqueue_request(Request([5, 6, 7], 400, end_id=-1))
calls = {
    "enqueue": lambda: executor.enqueue_request(Request([5, 6], 2)),
    "await": lambda: executor.await_responses(),
    "await one": lambda: executor.await_responses(number),
    "drop": lambda: executor.drop_request(number),
    "async": lambda: asyncio.run(executor.aenqueue(Request([5, 6], 2))),
    "register": lambda: executor.register_guide("digits", Guide.regex("[0-9]")),
    "generate": lambda: llm.generate("a"),
    "stream": lambda: next(iter(llm.stream("a"))),
    "llm.compile": lambda: llm.compile(Guide.regex("[0-9]")),
    "compile": lambda: compiler.compile(Guide.regex("[0-9]{3}")),
    "step": lambda: engine.step(),
}
reading, writing = os.pipe()
child = os.fork()
if not child:
    told = {}
    for name, call in calls.items():
        try:
            call()
            told[name] = "nothing was raised"
        except Exception as error:
            told[name] = f"{type(error).__name__}: {error}"
    executor.shutdown()
    llm.close()
    os.write(writing, json.dumps(told).encode())
    sys.exit(0)
os.close(writing)
with os.fdopen(reading) as pipe:
    told = json.load(pipe)
_, status = os.waitpid(child, 0)
helper = compiler._trial._helpers._latest.process
facts = {"told": told, "status": status, "helper": helper.poll(), "same": answer() == before}
facts["text"] = llm.generate("a", guide=Guide.regex("[0-9]{3}")).text
executor.register_guide("x", Guide.regex("[0-9]{3}")).result()
facts["same helper"] = compiler._trial._helpers._latest.process is helper
print(json.dumps(facts))
executor.shutdown()
llm.close()
"""


@pytest.mark.slow
def test_a_fork_is_told_and_leaves_its_parent_alone() -> None:
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    facts = json.loads(run.stdout)
    for name, told in facts["told"].items():
        kind = "GuideError" if name in ("register", "llm.compile", "compile") else "ExecutorError"
        assert told.startswith(("ExecutorError" if name == "register" else kind) + ": the "), (name, told)
        assert "was forked from it" in told and "after the fork" in told
    assert facts["status"] == 0 and facts["helper"] is None and facts["same helper"]
    assert facts["same"] and facts["text"].isdigit()
