"""Measure the share of correct greedy answers of weft-tiny on data that its training lists lack, into names.json.

    python names.py [--out DIR] [--model DIR]

names.txt holds the names. asked.jsonl holds other texts with their schemas and answers. questions.txt holds prompts
without a schema; their correct answer is `weft.tiny.prompts.ABOUT`. The training mix contains no name of names.txt and
no line of the other files. Needs weft built.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from config import ASSETS, HERE, lines
from rich.console import Console

from weft import LLM, Guide, SamplingParams
from weft.tiny.prompts import ABOUT, render_prompt
from weft_bench.report import Report

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TEXTS = {
    "README": "{name} is {age} years old.",
    "record": "Checked twice. Age {age}. This is {name}.",
    "sentence": "My name is {name} and I am {age}.",
}
LENGTH = SamplingParams(max_tokens=256)


def parsed(text: str) -> Any:
    """Return the text's JSON, or None."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def ages(names: list[str]) -> list[dict[str, Any]]:
    """Return the expected answers: each name with an age."""
    return [{"name": name, "age": 18 + 7 * i % 80} for i, name in enumerate(names)]


def row(what: str, form: str, wrong: list[str], asked: int) -> dict[str, Any]:
    """Return a line of the report."""
    return {"what": what, "form": form, "asked": asked, "share": 1 - len(wrong) / asked, "wrong": wrong}


def compare(outputs: list[Any], wanted: list[Any], shown: Callable[[Any], str]) -> list[str]:
    """Return the answers that differ from the expected ones."""
    return [
        f"{shown(want)} -> {output.text}"
        for output, want in zip(outputs, wanted, strict=True)
        if parsed(output.text) != want
    ]


def names_rows(llm: LLM) -> list[dict[str, Any]]:
    """Measure every name in every form without a guide, then in a chat, and in the README's form with its guide."""
    wanted = ages(lines("names.txt"))
    rows = []
    for form, text in TEXTS.items():
        prompts = [render_prompt(text.format(**want), SCHEMA) for want in wanted]
        outputs = llm.generate(prompts, sampling=LENGTH)
        rows.append(row("names", form, compare(outputs, wanted, str), len(wanted)))
    texts = [TEXTS["README"].format(**want) for want in wanted]
    chats = [[{"role": "user", "content": render_prompt(t, SCHEMA).removesuffix("JSON: ")}] for t in texts]
    rows.append(
        row("names", "chat", compare([llm.chat(c, sampling=LENGTH) for c in chats], wanted, str), len(wanted))
    )
    guide = Guide.json_schema(SCHEMA)
    outputs = llm.generate([render_prompt(t, SCHEMA) for t in texts], guide=guide, sampling=LENGTH)
    rows.append(row("names", "README, guided", compare(outputs, wanted, str), len(wanted)))
    outputs = llm.generate([f"{t}\n" for t in texts], guide=guide, sampling=LENGTH)
    rows.append(row("names", "no schema, guided", compare(outputs, wanted, str), len(wanted)))
    return rows


def asked_row(llm: LLM) -> dict[str, Any]:
    """Measure the other texts."""
    asked = [json.loads(line) for line in lines("asked.jsonl")]
    schemas = [{"properties": {k: {"type": t} for k, t in one["schema"].items()}} for one in asked]
    prompts = [render_prompt(one["text"], schema) for one, schema in zip(asked, schemas, strict=True)]
    outputs = llm.generate(prompts, sampling=LENGTH)
    return row("texts", "README", compare(outputs, [one["answer"] for one in asked], str), len(asked))


def questions_rows(llm: LLM) -> list[dict[str, Any]]:
    """Measure prompts without a schema, as plain text and as messages."""
    asked = lines("questions.txt")
    plain = llm.generate(asked, sampling=LENGTH)
    chat = [llm.chat([{"role": "user", "content": text}], sampling=LENGTH) for text in asked]
    return [
        row(
            "questions",
            form,
            [f"{q} -> {o.text}" for q, o in zip(asked, outputs, strict=True) if o.text != ABOUT],
            len(asked),
        )
        for form, outputs in (("as typed", plain), ("chat", chat))
    ]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--model", type=Path, default=ASSETS)
    args = parser.parse_args()
    with LLM(args.model, device="cpu") as llm:
        rows = [*names_rows(llm), asked_row(llm), *questions_rows(llm)]
    Report("names", rows, {"names_right": rows[0]["share"]}).write(args.out)
    shown = [{key: value for key, value in each.items() if key != "wrong"} for each in rows]
    Report("names", shown).show(Console())


if __name__ == "__main__":
    main()
