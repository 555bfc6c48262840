"""Schema-only prompts of the training split, answered by the target under their schemas, as training data.

    python sample.py OUT.npz [EXAMPLES]

On such prompts a head or draft model must predict the target's own choice of values. The target therefore makes the
data, sampled at temperatures between 0.7 and 1. This is the only step that needs weft built.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from config import ASSETS, EOS, TARGET
from data import write

from weft import LLM, Guide, SamplingParams, Speculation
from weft.tiny.records import schema_only


def sample(examples: int, seed: int, chunk: int = 200) -> tuple[list[list[int]], list[list[int]]]:
    """Return token ids of prompts and answers; the same seed returns the same ids."""
    rng = random.Random(seed)
    llm = LLM(ASSETS, device="cpu", speculation=Speculation.eagle3(num_draft_tokens=3))
    prompts: list[list[int]] = []
    answers: list[list[int]] = []
    while len(answers) < examples:
        records = [schema_only(rng) for _ in range(chunk)]
        outputs = llm.generate(
            [r.prompt for r in records],
            guide=[Guide.json_schema(r.schema) for r in records],
            sampling=[
                SamplingParams(temperature=rng.uniform(0.7, 1.0), seed=rng.getrandbits(32)) for _ in records
            ],
        )
        for record, output in zip(records, outputs, strict=True):
            if output.finish_reason == "stop":
                prompts.append(list(llm.tokenizer.encode(record.prompt)))
                answers.append([t for t in output.token_ids if t != EOS])
        print(f"{len(answers)} answers", flush=True)
    return prompts, answers


if __name__ == "__main__":
    write(Path(sys.argv[1]), *sample(int(sys.argv[2]) if len(sys.argv) > 2 else 8000, TARGET.seed + 2))
