"""Requests for testing drafters on each device: under every kind of guide, greedy and at temperature 1, with the
answers expected without speculation."""

from __future__ import annotations

from typing import Any

from support.engine.oracle import Reference, assert_same
from support.engine.references import Checkpoint, compile_reference, make_guide
from support.engine.sampling_oracle import decode
from weft import LLM, Output, SamplingParams

GUIDED: list[tuple[str, Any] | None] = [
    None,
    ("json", None),
    (
        "json_schema",
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 9}, "count": {"type": "integer"}},
            "required": ["name", "count"],
        },
    ),
    ("regex", r"(ab|[0-9]{1,3}-)*END"),
    ("ebnf", 'root ::= "[" item ("," item)* "]"\nitem ::= [a-z]+ | root'),
    ("choice", ["north by northwest", "north", "south", "southern cross"]),
]
ROWS = [(guide, temperature) for guide in range(len(GUIDED)) for temperature in (0.0, 1.0)]
MAX_TOKENS = 20


def references(checkpoint: Checkpoint, prompts: list[str]) -> list[Reference]:
    """Decode each of `ROWS` without speculation, by transformers, xgrammar and the sampling reference."""
    found = []
    for i, (guide, temperature) in enumerate(ROWS):
        entry = GUIDED[guide]
        compiled = compile_reference(checkpoint.compiler, entry) if entry is not None else None
        prompt = checkpoint.tokenizer.encode(prompts[i])
        found.append(decode(checkpoint.model, prompt, compiled, checkpoint.end_ids, params(i, temperature)))
    return found


def params(seed: int, temperature: float) -> SamplingParams:
    return SamplingParams(max_tokens=MAX_TOKENS, temperature=temperature, seed=seed)


def run(llm: LLM, prompts: list[str]) -> list[Output]:
    """Answer `ROWS` as requests, with prompt i for row i."""
    outputs: list[Output] = llm.generate(
        prompts[: len(ROWS)],
        guide=[make_guide(e) if (e := GUIDED[g]) is not None else None for g, _ in ROWS],
        sampling=[params(i, temperature) for i, (_, temperature) in enumerate(ROWS)],
    )
    return outputs


def check(outputs: list[Output], expected: list[Reference]) -> None:
    """Check that each answer has its reference's tokens. They may differ from a token on whose two best values are
    within rounding."""
    for output, reference, (guide, temperature) in zip(outputs, expected, ROWS, strict=True):
        assert output.error is None, f"guide {GUIDED[guide]}: {output.error}"
        assert_same(output.token_ids, reference, f"guide {GUIDED[guide]}, temperature {temperature}")
