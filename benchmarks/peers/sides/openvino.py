"""OpenVINO GenAI: its pipeline with continuous batching, which reads a GGUF file."""

from __future__ import annotations

import importlib.metadata
import json
import time
from typing import Any

from ..protocol import Answer, Answers, Config, Prompt, Request, serve

CACHE_GB = 1


class OpenVino:
    """A pipeline without prefix caching."""

    def __init__(self, config: Config) -> None:
        import numpy
        import openvino
        import openvino_genai as genai

        self.versions = {name: importlib.metadata.version(name) for name in ("openvino", "openvino-genai")}
        self._genai, self._tensor, self._array = genai, openvino.Tensor, numpy.array
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_seqs, scheduler.cache_size = config.batch, CACHE_GB
        scheduler.enable_prefix_caching = False
        self._drafts = config.num_drafts
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": config.threads}
        if config.drafter == "ngram":
            properties["prompt_lookup"] = True
        self._pipeline = genai.ContinuousBatchingPipeline(config.model, scheduler, "CPU", properties)
        self._tokenizer = self._pipeline.get_tokenizer()

    def prepare(self, prompts: list[Prompt]) -> None:
        """Generate one token for each prompt, so that its grammar is compiled and cached."""
        self.answer(Request(prompts, 1, False))

    def answer(self, request: Request) -> Answers:
        """Answer all prompts."""
        ids = [self._tensor(self._array([prompt.ids], dtype="int64")) for prompt in request.prompts]
        configs = [self._config(prompt, request) for prompt in request.prompts]
        begin = time.perf_counter()
        results = self._pipeline.generate(ids, configs)
        seconds = time.perf_counter() - begin
        return Answers(seconds, [self._answer(result) for result in results])

    def _config(self, prompt: Prompt, request: Request) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.ignore_eos = request.max_tokens, False, request.exact
        config.set_eos_token_id(self._tokenizer.get_eos_token_id())
        if self._drafts:
            config.num_assistant_tokens, config.max_ngram_size = self._drafts, 4
        if prompt.schema is not None:
            config.structured_output_config = self._genai.StructuredOutputConfig(
                json_schema=json.dumps(prompt.schema)
            )
        return config

    def _answer(self, result: Any) -> Answer:
        ids = list(result.m_generation_ids[0])
        moments = result.perf_metrics.raw_metrics.m_new_token_times  # in milliseconds
        stopped = result.finish_reasons[0] == self._genai.GenerationFinishReason.STOP
        text = self._tokenizer.decode(ids)
        return Answer(len(ids), text, 1e-3 * (moments[-1] - moments[0]), stopped)


if __name__ == "__main__":
    serve(OpenVino)
