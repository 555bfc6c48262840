"""What a command line gives: prompts, a guide, speculation and sampling, read and checked."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from weft.config import MAX_DRAFT_TOKENS, DraftTokens, Speculation, package_model_path
from weft.errors import InputError


class Drafter(StrEnum):
    auto = "auto"
    none = "none"
    eagle3 = "eagle3"
    mtp = "mtp"
    draft_model = "draft_model"
    ngram = "ngram"
    forced = "forced"


class Guided(StrEnum):
    auto = "auto"
    on = "on"
    off = "off"


PATHS = {"eagle3": "eagle3", "mtp": "mtp", "draft_model": "draft"}
"""Where a model directory keeps each drafter's own directory."""


def read_text(path: Path, what: str) -> str:
    """A text file of the command line; `what` is the option that named it."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{what}: can't read {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{what}: {str(path)!r} is not UTF-8 text") from None


def read_prompts(prompt: str | None, files: list[Path]) -> list[str]:
    """The prompts of the command line, in its order."""
    prompts = []
    if prompt == "-" or (prompt is None and not files):
        if sys.stdin.isatty():
            raise InputError("no prompt; give one as an argument, with --file, or on standard input")
        try:
            prompts.append(typer.get_text_stream("stdin", encoding="utf-8", errors="strict").read())
        except UnicodeDecodeError:
            raise InputError("standard input is not UTF-8 text") from None
    elif prompt is not None:
        prompts.append(prompt)
    prompts += [read_text(path, "--file") for path in files]
    if not all(prompts):
        raise InputError(
            "the prompt is empty; give some text as an argument, with --file, or on standard input"
        )
    return prompts


def read_guide(
    any_json: bool, schema: str | None, regex: str | None, ebnf: Path | None, choice: list[str] | None
) -> Any:
    """The one guide of the command line, or None."""
    from weft.grammar.guide import Guide

    options = {
        "--json": any_json or None,
        "--json-schema": schema,
        "--regex": regex,
        "--ebnf": ebnf,
        "--choice": choice or None,
    }
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} were given; an answer has one guide")
    if any_json:
        return Guide.json()
    if schema is not None:
        is_inline = schema.lstrip().startswith(("{", "[", '"', "true", "false")) or not schema.strip()
        return Guide.json_schema(schema if is_inline else read_text(Path(schema), "--json-schema"))
    if regex is not None:
        return Guide.regex(regex)
    if ebnf is not None:
        return Guide.ebnf(read_text(ebnf, "--ebnf"))
    return Guide.choice(choice) if choice else None


def read_draft_tokens(given: str) -> DraftTokens:
    """A number, or a schedule by batch size such as 1:5,4:3,16:0."""
    try:
        if ":" not in given:
            return int(given)
        return {int(batch): int(count) for batch, count in (part.split(":") for part in given.split(","))}
    except ValueError:
        raise InputError(
            f"--num-draft-tokens is {given!r}; give a number, 1 to {MAX_DRAFT_TOKENS}, "
            "or batch sizes with numbers such as 1:5,4:3,16:0"
        ) from None


def choose_speculation(
    drafter: Drafter,
    path: Path | None,
    num_draft_tokens: str,
    guided: Guided,
    forced: bool,
    model: Path | None,
) -> Speculation:
    """The speculation of the command line; auto is EAGLE3 where there is a head."""
    count = read_draft_tokens(num_draft_tokens)
    if isinstance(count, int) and not 1 <= count <= MAX_DRAFT_TOKENS:
        raise InputError(
            f"--num-draft-tokens is {count}; it must be 1 to {MAX_DRAFT_TOKENS} "
            "(for no drafts use --speculation none)"
        )
    drafts: Any = {"auto": "auto", "on": True, "off": False}[guided.value]
    if drafter is Drafter.auto:
        own = (model or package_model_path()) / "eagle3"
        drafter = Drafter.eagle3 if path is not None or own.is_dir() else Drafter.none
    if path is not None and drafter.value not in PATHS:
        raise InputError(f"--head is for {', '.join(PATHS)}; --speculation is {drafter.value}")
    settings: dict[str, Any] = {"num_draft_tokens": count, "guide_drafts": drafts}
    if drafter in (Drafter.none, Drafter.forced):
        if forced or drafter is Drafter.forced:
            return Speculation.forced(num_draft_tokens=count)
        return Speculation.none()
    make = getattr(Speculation, drafter.value)
    chosen: Speculation = make(path, **settings) if drafter.value in PATHS else make(**settings)
    return Speculation.forced(chosen) if forced else chosen


def read_bias(entries: list[str]) -> dict[int, float] | None:
    """Entries TOKEN=BIAS of --logit-bias."""
    try:
        return {int(token): float(value) for token, value in (e.split("=") for e in entries)} or None
    except ValueError:
        raise InputError(f"--logit-bias is {entries}; give TOKEN_ID=BIAS, such as 17=-5 or 17=-inf") from None
