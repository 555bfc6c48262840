"""The requests of `weft bench serve`: held-out prompts, of which a share is guided. Longer prompts are several of them,
one after another.

By default an answer ends by itself, and its guide is its prompt's schema. With `fixed_tokens`, every answer has that
many tokens, guided or not, so that loads differ in time only. Unguided requests then have no end token, and the
guide is the schema of an object with more texts than any answer completes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.config import model_directory
from weft.executor import (
    Executor,
    GuidedDecodingParams,
    GuideType,
    OutputConfig,
    Request,
)
from weft.tiny.records import example
from weft.tokenizer.files import load_tokenizer
from weft_bench.engine.paired import FIELDS
from weft_bench.heldout import SEED

MAX_TOKENS = 192
"""The maximum length of answers that end by themselves."""

ENDLESS = "endless"
ENDLESS_SCHEMA = json.dumps(
    {"type": "object", "properties": {name: {"type": "string"} for name in FIELDS}, "required": FIELDS}
)


@dataclass(frozen=True)
class Workload:
    """Prompts as token ids, each with its JSON schema. Request i has prompt i, and prompts repeat. With `streaming`,
    answers stream token by token. `end_id` ends answers without a fixed length."""

    prompts: Sequence[Sequence[int]]
    schemas: Sequence[str]
    end_id: int
    fixed_tokens: int | None = None
    streaming: bool = True

    @classmethod
    def heldout(
        cls,
        model: Path | None,
        count: int,
        fixed_tokens: int | None = None,
        lengths: tuple[int, int] | None = None,
    ) -> Workload:
        """Return `count` held-out prompts as tokens of a model (None: weft-tiny). With `lengths`, the length of each
        prompt is random between these two; other prompts precede it, and the beginning is cut off."""
        tokenizer = load_tokenizer(model_directory(model))
        rng = random.Random(SEED)
        records = [example(rng, "heldout") for _ in range(count)]
        prompts = [tokenizer.encode(record.prompt) for record in records]
        if lengths is not None:
            prompts = [_lengthened(prompts, i, rng.randint(*lengths)) for i in range(count)]
        schemas = [json.dumps(record.schema) for record in records]
        return cls(prompts, schemas, tokenizer.eos_token_id, fixed_tokens)

    @property
    def max_tokens(self) -> int:
        """The maximum length of an answer in tokens."""
        return self.fixed_tokens if self.fixed_tokens is not None else MAX_TOKENS

    @property
    def longest(self) -> int:
        """The number of tokens of the longest prompt and its longest answer together."""
        return max(map(len, self.prompts)) + self.max_tokens

    def prepare(self, executor: Executor) -> None:
        """Compile the guide of requests with a fixed length."""
        if self.fixed_tokens is not None:
            guide = GuidedDecodingParams(GuideType.JSON_SCHEMA, ENDLESS_SCHEMA)
            executor.register_guide(ENDLESS, guide).result()

    def request(self, number: int, guided_percent: int, max_tokens: int | None = None) -> Request:
        """Make request `number` (from 0). `guided_percent` percent of the requests are guided, evenly spread."""
        place = number % len(self.prompts)
        guided = is_guided(number, guided_percent)
        return Request(
            self.prompts[place],
            self.max_tokens if max_tokens is None else max_tokens,
            streaming=self.streaming,
            output_config=OutputConfig(exclude_input_from_output=True, return_perf_metrics=True),
            end_id=self.end_id if guided or self.fixed_tokens is None else None,
            guided_decoding_params=self._guide(place) if guided else None,
        )

    def _guide(self, place: int) -> GuidedDecodingParams:
        if self.fixed_tokens is not None:
            return GuidedDecodingParams.handle(ENDLESS)
        return GuidedDecodingParams(GuideType.JSON_SCHEMA, self.schemas[place])


def _lengthened(prompts: Sequence[list[int]], number: int, length: int) -> list[int]:
    """Return the last `length` tokens of all prompts up to prompt `number`. After the first prompt comes the last."""
    text = prompts[number]
    while len(text) < length:
        number -= 1
        text = prompts[number % len(prompts)] + text
    return text[-length:]


def is_guided(number: int, percent: int) -> bool:
    """Whether request `number` is one of the guided requests."""
    return (number + 1) * percent // 100 > number * percent // 100
