"""Sends guided requests over HTTP at temperature 1, and checks finished answers with jsonschema.

    python benchmarks/server_valid.py SCHEMAS [--requests 2000] [--max-tokens 400] [--least 0.6]

SCHEMAS is a folder of JSON schemas with instances in MaskBench's layout, or a .jsonl file of them. Requests cycle
through the schemas and through the API's names for a guide, and half of them stream. If a schema can't be enforced
completely, the server refuses it with a 400 that says why. An answer that its guide ended (`finish_reason` "stop")
must be valid. Answers that `--max-tokens` cut are not checked. The exit status is 1 if an answer is invalid, if a
request failed, or if fewer than `--least` of the requests have a valid answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
from openai import APIStatusError, AsyncOpenAI
from rich.console import Console

from server.process import serving
from weft_bench.grammar.schema_files import read
from weft_bench.report import Report

CONCURRENCY = 48


def by_name(schema: Any, number: int) -> dict[str, Any]:
    """Return the fields of a request with this guide, under one of the API's names."""
    named = {"name": "x", "schema": schema, "strict": True}
    return [
        {"response_format": {"type": "json_schema", "json_schema": named}},
        {"structured_outputs": {"json": schema}},
        {"guided_json": json.dumps(schema)},
        {"guide": {"json_schema": schema}},
    ][number % 4]


async def ask(client: AsyncOpenAI, schema: Any, number: int, max_tokens: int) -> tuple[str, str]:
    """Send a request. Returns the finish reason, and the answer or the error."""
    prompt = "Schema: any\nJSON: "
    asked: dict[str, Any] = {"model": "weft-tiny", "messages": [{"role": "user", "content": prompt}]}
    asked |= {"temperature": 1.0, "seed": number, "max_tokens": max_tokens}
    try:
        if number % 2:
            text, reason = "", ""
            stream = await client.chat.completions.create(
                **asked, stream=True, extra_body=by_name(schema, number // 2)
            )
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                reason = chunk.choices[0].finish_reason or reason
            return reason, text
        answer = await client.chat.completions.create(**asked, extra_body=by_name(schema, number // 2))
        return str(answer.choices[0].finish_reason), answer.choices[0].message.content or ""
    except APIStatusError as error:
        return f"{error.status_code}", str(error)


def verdict(schema: Any, text: str) -> str:
    """Return jsonschema's verdict on an answer."""
    try:
        data = json.loads(text)
    except ValueError:
        return "no_json"
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        return "valid" if kind(schema).is_valid(data) else "invalid"
    except Exception:  # references that it can't follow, patterns that Python can't parse
        return "unjudged"


async def run(port: int, schemas: list[Any], count: int, max_tokens: int) -> tuple[Counter[str], list[str]]:
    """Send `count` requests, up to `CONCURRENCY` at a time."""
    found: Counter[str] = Counter()
    wrong: list[str] = []
    places = asyncio.Semaphore(CONCURRENCY)
    async with AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=300
    ) as client:

        async def one(number: int) -> None:
            schema = schemas[number % len(schemas)]
            async with places:
                reason, text = await ask(client, schema, number, max_tokens)
            said = (
                verdict(schema, text)
                if reason == "stop"
                else {"length": "cut", "400": "refused"}.get(reason, reason)
            )
            found[said] += 1
            if said not in ("valid", "cut", "refused", "unjudged"):
                wrong.append(f"{said}: {json.dumps(schema)[:300]}: {text[:300]}")

        await asyncio.gather(*(one(number) for number in range(count)))
    return found, wrong


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("schemas", type=Path)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--least", type=float, default=0.6)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    schemas = [one.schema for one in read(args.schemas) if not one.problem]
    random.Random(0).shuffle(schemas)
    with serving("--max-batch", "32", "--speculation", "eagle3", "--forced") as server:
        found, wrong = asyncio.run(run(server.port, schemas, args.requests, args.max_tokens))
    for line in wrong:
        print(line)
    row = {"requests": args.requests, "schemas": len(schemas), **dict(sorted(found.items()))}
    report = Report("server_valid", [row])
    report.show(Console())
    if args.out is not None:
        report.write(args.out)
    share = found["valid"] / args.requests if args.requests else 0.0
    if share < args.least:
        print(f"{share:.0%} of the requests have a valid answer; {args.least:.0%} must")
    if wrong or share < args.least:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
