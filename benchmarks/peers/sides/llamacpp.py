"""llama.cpp: its server as a child of this process, built for this machine, and asked over HTTP by a thread for each
concurrent prompt."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..protocol import Answer, Answers, Config, Prompt, Request, end_with_parent, serve

NGRAMS = {"ngram": "simple", "ngram_map": "map-k"}
"""llama.cpp's names for the drafters that look up n-grams."""
NGRAM_LENGTH = 3
"""The number of preceding tokens that must match. The default, 12, seldom matches in short answers."""
START_S = 120.0


class LlamaCpp:
    """A server with a slot for each prompt of a batch. Prompts are not cached. Environment variable LLAMACPP_BIN names
    the folder of its programs."""

    def __init__(self, config: Config) -> None:
        program = Path(os.environ["LLAMACPP_BIN"]) / "llama-server"
        self.versions = {"llama.cpp": _version(program), "built_for": _features(program)}
        self._port = _free_port()
        self._process = subprocess.Popen(
            [str(program), *_arguments(config), "--port", str(self._port)],
            stdout=sys.stderr,
            preexec_fn=end_with_parent,
        )
        self._users = ThreadPoolExecutor(config.batch)
        self._wait_until_healthy()

    def prepare(self, prompts: list[Prompt]) -> None:
        """Do nothing: each request compiles its grammar, in about a millisecond."""

    def answer(self, request: Request) -> Answers:
        """Answer all prompts. Each thread takes one prompt after another."""
        begin = time.perf_counter()
        replies = list(self._users.map(lambda prompt: self._ask(prompt, request), request.prompts))
        seconds = time.perf_counter() - begin
        return Answers(seconds, [_answer(reply) for reply in replies])

    def _ask(self, prompt: Prompt, request: Request) -> Any:
        body: dict[str, Any] = {
            "prompt": prompt.ids,
            "n_predict": request.max_tokens,
            "temperature": 0.0,
            "stream": False,
            "cache_prompt": False,
            "ignore_eos": request.exact,
        }
        if prompt.schema is not None:
            body["json_schema"] = prompt.schema
        return self._post(body)

    def _post(self, body: dict[str, Any]) -> Any:
        # A connection for each request, because the server closes one that waits for the other sides' turns.
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        try:
            connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def _wait_until_healthy(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise RuntimeError(f"llama-server ended with {self._process.returncode}")
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
            try:
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            finally:
                connection.close()
            time.sleep(0.1)
        raise RuntimeError(f"llama-server was not ready within {START_S:g} s")


def _arguments(config: Config) -> list[str]:
    """The arguments of llama-server."""
    threads = str(config.threads)
    made = [
        *("--model", config.model, "--host", "127.0.0.1", "--threads", threads, "--threads-batch", threads),
        *("--parallel", str(config.batch), "--ctx-size", str(config.max_seq_len * config.batch)),
        *("--flash-attn", "on", "--cache-ram", "0", "--threads-http", str(config.batch + 2)),
    ]
    if config.drafter == "draft_model":
        assert config.draft is not None
        made += ["--spec-type", "draft-simple", "--model-draft", config.draft, "--threads-draft", threads]
        made += ["--spec-draft-n-max", str(config.num_drafts)]
    elif config.drafter != "none":
        kind = f"ngram-{NGRAMS[config.drafter]}"
        made += ["--spec-type", kind, f"--spec-{kind}-size-n", str(NGRAM_LENGTH)]
        made += [f"--spec-{kind}-size-m", str(config.num_drafts)]
    return made


def _version(program: Path) -> str:
    run = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True)
    return next(line for line in (run.stdout + run.stderr).splitlines() if line.startswith("version"))


def _features(program: Path) -> str:
    """The options with which the programs were built, which the setup wrote beside them."""
    return (program.parent / "features").read_text().strip()


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def _answer(reply: dict[str, Any]) -> Answer:
    if "timings" not in reply:
        raise RuntimeError(f"llama.cpp: {reply}")
    is_whole = reply["stop_type"] in ("eos", "word")
    return Answer(
        reply["tokens_predicted"], reply["content"], reply["timings"]["predicted_ms"] / 1e3, is_whole
    )


if __name__ == "__main__":
    serve(LlamaCpp)
