"""llama.cpp: runs its server in this process through the package xllamacpp, with a thread for each concurrent
prompt."""

from __future__ import annotations

import importlib.metadata
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xllamacpp

from ..protocol import Answer, Answers, Config, Prompt, Request, serve

KINDS = {"draft_model": "DRAFT_SIMPLE", "ngram": "NGRAM_SIMPLE", "ngram_map": "NGRAM_MAP_K"}
"""llama.cpp's names for the drafters."""
NGRAM_LENGTH = 3
"""The number of preceding tokens that must match. The default, 12, seldom matches in short answers."""


class LlamaCpp:
    """A server with a slot for each prompt of a batch. Prompts are not cached."""

    def __init__(self, config: Config) -> None:
        self.versions = {
            "xllamacpp": importlib.metadata.version("xllamacpp"),
            "uses": xllamacpp.get_system_info(),
        }
        params = xllamacpp.CommonParams()
        params.model.path = config.model
        params.n_parallel = config.batch
        params.n_ctx = config.max_seq_len * config.batch
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = config.threads
        params.n_threads_http = config.batch + 2
        params.cache_prompt = False
        params.cache_ram_mib = 0
        _draft(params.speculative, config)
        self._server = xllamacpp.Server(params)
        self._users = ThreadPoolExecutor(config.batch)

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
        return self._server.handle_completions(body)


def _draft(params: Any, config: Config) -> None:
    if config.drafter == "none":
        return
    kind = getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{KINDS[config.drafter]}")
    params.types = [kind]
    if config.drafter == "draft_model":
        assert config.draft is not None
        params.draft.mparams.path = config.draft
        params.draft.n_max = config.num_drafts
        params.draft.cpuparams.n_threads = params.draft.cpuparams_batch.n_threads = config.threads
        return
    ngram = params.ngram_simple if config.drafter == "ngram" else params.ngram_map_k
    ngram.size_n, ngram.size_m = NGRAM_LENGTH, config.num_drafts


def _answer(reply: dict[str, Any]) -> Answer:
    if "choices" not in reply:
        raise RuntimeError(f"llama.cpp: {reply}")
    choice, timings = reply["choices"][0], reply["timings"]
    num_tokens, is_whole = reply["usage"]["completion_tokens"], choice["finish_reason"] == "stop"
    return Answer(num_tokens, choice["text"], timings["predicted_ms"] / 1e3, is_whole)


if __name__ == "__main__":
    serve(LlamaCpp)
