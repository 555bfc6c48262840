"""Prompts that are held out of weft-tiny's training, with guides for their answers, and functions that answer them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from weft.core import Output, SamplingParams
from weft.grammar.guide import Guide
from weft.grammar.xgrammar.backend import CompiledXGrammar
from weft.llm import LLM
from weft.tiny.records import Record, Split, example, schema_only

SEED = 77

MAKERS: dict[str, Callable[[random.Random, Split], Record]] = {
    "extraction": example,
    "schema only": schema_only,
}
"""Functions that make prompts. The answer is either contained in the prompt, or only described by its schema."""


@dataclass(frozen=True)
class PromptSet:
    """Prompts, and a guide for each."""

    name: str
    prompts: list[str]
    guides: list[Guide]

    def answer(self, llm: LLM, temperature: float = 0.0, max_tokens: int = 192) -> list[Output]:
        """Answer every prompt, with its index as the seed. Raises the error of the first answer that failed."""
        sampling = [
            SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=i)
            for i in range(len(self.prompts))
        ]
        outputs: list[Output] = llm.generate(self.prompts, guide=self.guides, sampling=sampling)
        for output in outputs:
            if output.error is not None:
                raise output.error
        return outputs


def prompt_set(name: str, count: int, llm: LLM, separators: tuple[str, str] | None = None) -> PromptSet:
    """Return `count` held-out prompts of the set. `llm` compiles the schemas once, for all LLMs with its vocabulary.
    `separators` is an argument of `Guide.json_schema`."""
    rng = random.Random(SEED)
    records = [MAKERS[name](rng, "heldout") for _ in range(count)]
    guides = [
        Guide.json_schema(
            record.schema, max_whitespace=8, separators=separators
        )  # as in the published figures
        for record in records
    ]
    compiling = [llm.compile(guide) for guide in guides]
    for i, future in enumerate(compiling):
        compiled = future.result()
        if isinstance(compiled, CompiledXGrammar):
            guides[i] = Guide.of(compiled.compiled)
    return PromptSet(name, [record.prompt for record in records], guides)


def prompt_sets(count: int, llm: LLM) -> list[PromptSet]:
    """Return both sets of prompts."""
    return [prompt_set(name, count, llm) for name in MAKERS]


def acceptance_length(outputs: list[Output]) -> float:
    """Return the mean tokens per iteration that verified drafts, over all requests. 1 if there was no such
    iteration."""
    iterations = sum(output.stats.drafted_iterations for output in outputs)
    tokens = sum(output.stats.drafted_tokens for output in outputs)
    return tokens / iterations if iterations else 1.0


def count_differing(outputs: list[Output], reference: list[Output]) -> int:
    """Return the number of answers whose tokens differ from the reference's."""
    pairs = zip(outputs, reference, strict=True)
    return sum(output.token_ids != other.token_ids for output, other in pairs)
