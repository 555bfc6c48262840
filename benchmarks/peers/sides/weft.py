"""weft, through its public API."""

from __future__ import annotations

import json
import time
from functools import cache

import torch

from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation, __version__

from ..protocol import Answer, Answers, Config, Prompt, Request, serve

DTYPES = ("float32", "float16", "bfloat16")
DRAFTERS = ("eagle3", "mtp", "draft_model", "ngram")


def speculation(config: Config) -> Speculation:
    """Make a `Speculation` from its name. "forced+NAME" first drafts the text that the grammar forces."""
    if config.drafter == "none":
        return Speculation.none()
    first, _, then = config.drafter.rpartition("+")
    drafts = Speculation.named(then, num_draft_tokens=config.num_drafts)
    return Speculation.forced(drafts) if first == "forced" else drafts


@cache
def guide(schema: str) -> Guide:
    """Return the guide for a schema given as JSON text."""
    return Guide.json_schema(json.loads(schema), max_whitespace=8)  # as in the published figures


def guide_of(prompt: Prompt) -> Guide | None:
    """Return the guide of a prompt, or None."""
    return None if prompt.schema is None else guide(json.dumps(prompt.schema))


class Weft:
    """An `LLM` without prefix reuse."""

    def __init__(self, config: Config) -> None:
        self.versions = {"weft": __version__, "torch": torch.__version__}
        torch.set_num_threads(config.threads)
        engine = EngineConfig(max_batch=config.batch, max_seq_len=config.max_seq_len, reuse=False)
        dtype = config.dtype if config.dtype in DTYPES else "auto"  # a quantised file stays as it is
        self._llm = LLM(
            config.model, device="cpu", dtype=dtype, speculation=speculation(config), engine=engine
        )
        self._llm.warm_up()

    def prepare(self, prompts: list[Prompt]) -> None:
        """Compile the guides."""
        for future in [self._llm.compile(made) for made in map(guide_of, prompts) if made is not None]:
            future.result()

    def answer(self, request: Request) -> Answers:
        """Answer all prompts."""
        least = request.max_tokens if request.exact else 0
        sampling = SamplingParams(max_tokens=request.max_tokens, min_tokens=least)
        ids, guides = [p.ids for p in request.prompts], [guide_of(p) for p in request.prompts]
        begin = time.perf_counter()
        outputs = self._llm.generate(ids, guide=guides, sampling=sampling)
        seconds = time.perf_counter() - begin
        answers = []
        for output in outputs:
            if output.error is not None:
                raise output.error
            first, last = output.stats.first_token_at or 0.0, output.stats.last_token_at or 0.0
            answers.append(
                Answer(len(output.token_ids), output.text, last - first, output.finish_reason == "stop")
            )
        return Answers(seconds, answers)


if __name__ == "__main__":
    serve(Weft)
