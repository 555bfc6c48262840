"""Tests that finished answers satisfy their schemas: guided generation at temperature 1, checked by `jsonschema`.

Every drafter answers each schema several times. Refused schemas, and answers that `max_tokens` cuts, are counted but
not checked.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema.validators import Draft202012Validator, validator_for
from rich.progress import track

from weft.config import EngineConfig
from weft.core import Output, SamplingParams
from weft.errors import GuideError
from weft.grammar.guide import Guide
from weft.llm import LLM
from weft.tiny.prompts import render_schema_prompt
from weft_bench.engine.drafters import DRAFTERS, Variant
from weft_bench.grammar.schema_files import SchemaFile, read, some
from weft_bench.report import Report

MAX_PROMPT = 600
BATCH = 16


@dataclass(frozen=True)
class Judged:
    """A judged answer: "valid", "invalid", "cut", "error" or "unjudged", and whether some part of the schema was not
    enforced."""

    verdict: str
    text: str
    noted: bool = False


def run(
    source: Path,
    *,
    limit: int | None = 120,
    each: int = 2,
    max_tokens: int = 192,
    seed: int = 0,
    strict: bool = True,
    open_objects: bool = True,
    num_drafts: int = 3,
    drafters: Sequence[str] = (),
    names: bool = True,
) -> Report:
    """Judge `each` answers of weft-tiny to `limit` schemas of `source`, for every drafter (or the named ones). Each
    drafter has a row.

    Raises `InputError` for an invalid source.
    """
    files = [file for file in read(source) if not file.problem]
    rows, invalid = [], []
    chosen: list[tuple[SchemaFile, Guide]] = []
    for number, variant in enumerate(DRAFTERS):
        if drafters and variant.name not in drafters:
            continue
        with LLM(speculation=variant.speculation(num_drafts), engine=EngineConfig(max_batch=BATCH)) as llm:
            chosen = chosen or accepted(llm, some(files, None, seed), limit, strict, open_objects)
            judged = answers(llm, variant, chosen, each, max_tokens, seed * 1_000_003 + number * 10_007)
        counts = Counter(one.verdict for _, one in judged)
        rows.append(
            {
                "drafter": variant.name,
                "answers": len(judged),
                **{key: counts[key] for key in ("valid", "invalid", "cut", "error", "unjudged")},
                "invalid_without_a_note": sum(
                    one.verdict == "invalid" and not one.noted for _, one in judged
                ),
            }
        )
        invalid += [
            {"drafter": variant.name, **({"name": file.name} if names else {}), "text": one.text[:500]}
            for file, one in judged
            if one.verdict in ("invalid", "error")
        ]
    summary: dict[str, Any] = {
        "source": source.name,
        "schemas": len(chosen),
        "temperature": 1.0,
        "max_tokens": max_tokens,
        "strict": strict,
        "open_objects": open_objects,
        "seed": seed,
    }
    return Report("validity", rows, {**summary, **({"problems": invalid} if invalid and names else {})})


def accepted(
    llm: LLM, files: Sequence[SchemaFile], limit: int | None, strict: bool, open_objects: bool
) -> list[tuple[SchemaFile, Guide]]:
    """Return the first `limit` schemas that compile."""
    found: list[tuple[SchemaFile, Guide]] = []
    for file in files:
        try:
            guide = Guide.json_schema(
                file.schema,
                strict=strict,
                open_objects=open_objects,
                max_whitespace=8,  # as in the published figures
            )
            llm.compile(guide).result()
        except GuideError:
            continue
        found.append((file, guide))
        if len(found) == limit:
            break
    return found


def answers(
    llm: LLM,
    variant: Variant,
    chosen: Sequence[tuple[SchemaFile, Guide]],
    each: int,
    max_tokens: int,
    seed: int,
) -> list[tuple[SchemaFile, Judged]]:
    """Return `each` judged answers to every schema, with seeds from `seed` on."""
    asked = [pair for pair in chosen for _ in range(each)]
    judged: list[tuple[SchemaFile, Judged]] = []
    for start in track(range(0, len(asked), BATCH), variant.name):
        part = asked[start : start + BATCH]
        outputs = llm.generate(
            [prompt_of(file.schema) for file, _ in part],
            guide=[guide for _, guide in part],
            sampling=[
                SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=seed + start + i)
                for i in range(len(part))
            ],
        )
        judged += [
            (file, judge(file.schema, output)) for (file, _), output in zip(part, outputs, strict=True)
        ]
    return judged


def prompt_of(schema: Any) -> str:
    """Return a prompt in the format of weft-tiny's training, if it is short enough."""
    try:
        text = render_schema_prompt(schema)
    except (AttributeError, TypeError, RecursionError):
        text = ""
    return text if 0 < len(text) <= MAX_PROMPT else "Schema: any\nJSON: "


def judge(schema: Any, output: Output) -> Judged:
    """Judge an answer by `jsonschema`."""
    noted = bool(output.guide_notes)
    if output.error is not None:
        return Judged("error", str(output.error), noted)
    if output.finish_reason != "stop":
        return Judged("cut", output.text, noted)
    try:
        validator = validator_for(schema, default=Draft202012Validator)(schema)
        is_valid = validator.is_valid(json.loads(output.text))
    except ValueError:
        is_valid = False
    except (
        Exception
    ) as error:  # a schema that it can't judge by: a reference elsewhere, a pattern of another dialect
        return Judged("unjudged", f"{type(error).__name__}: {error}", noted)
    return Judged("valid" if is_valid else "invalid", output.text, noted)
