"""OpenVINO GenAI: its pipeline with continuous batching, which reads a GGUF file."""

from __future__ import annotations

import importlib.metadata
import json
import time
from dataclasses import dataclass, field
from typing import Any

from ..protocol import Answer, Answers, Config, Prompt, Request, serve

CACHE_GB = 1


@dataclass
class Running:
    """A request in the pipeline, and its answer's tokens with their times."""

    handle: Any
    ids: list[int] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    is_whole: bool = False


class OpenVino:
    """A pipeline without prefix caching. It gets at most as many requests as the batch has rows, because its scheduler
    has no such limit."""

    def __init__(self, config: Config) -> None:
        import numpy
        import openvino
        import openvino_genai as genai

        self.versions = {name: importlib.metadata.version(name) for name in ("openvino", "openvino-genai")}
        self._genai, self._tensor, self._array = genai, openvino.Tensor, numpy.array
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.enable_prefix_caching = False
        self._drafts, self._batch = config.num_drafts, config.batch
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": config.threads}
        if config.drafter == "ngram":
            properties["prompt_lookup"] = True
        self._pipeline = genai.ContinuousBatchingPipeline(config.model, scheduler, "CPU", properties)
        self._tokenizer = self._pipeline.get_tokenizer()
        self._count = 0  # of all requests: the pipeline wants a new number for each

    def prepare(self, prompts: list[Prompt]) -> None:
        """Generate one token for each prompt, so that its grammar is compiled and cached."""
        self.answer(Request(prompts, 1, False))

    def answer(self, request: Request) -> Answers:
        """Answer all prompts."""
        ids = [self._tensor(self._array([prompt.ids], dtype="int64")) for prompt in request.prompts]
        configs = [self._config(prompt, request) for prompt in request.prompts]
        requests: list[Running] = []
        begin = time.perf_counter()
        running: list[Running] = []
        while running or len(requests) < len(ids):
            while len(running) < self._batch and len(requests) < len(ids):
                place = len(requests)
                self._count += 1
                requests.append(Running(self._pipeline.add_request(self._count, ids[place], configs[place])))
                running.append(requests[-1])
            self._pipeline.step()
            now = time.perf_counter()
            running = [one for one in running if not self._collect(one, now)]
        seconds = time.perf_counter() - begin
        return Answers(seconds, [self._answer(one) for one in requests])

    def _collect(self, one: Running, now: float) -> bool:
        """Read a request's new tokens. Returns whether it has ended."""
        while one.handle.can_read():
            for output in one.handle.read().values():
                one.ids += output.generated_ids
                one.is_whole = output.finish_reason == self._genai.GenerationFinishReason.STOP
            one.moments.append(now)
        return bool(one.handle.get_status() != self._genai.GenerationStatus.RUNNING)

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

    def _answer(self, one: Running) -> Answer:
        text = self._tokenizer.decode(one.ids)
        return Answer(len(one.ids), text, one.moments[-1] - one.moments[0], one.is_whole)


if __name__ == "__main__":
    serve(OpenVino)
