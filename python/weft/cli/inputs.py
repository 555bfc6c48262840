"""What a command line gives: prompts, a guide, speculation and sampling, read and checked."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from weft import registry
from weft.config import MAX_DRAFT_TOKENS, DraftTokens, GuideDrafts, Speculation, model_directory
from weft.errors import InputError

if TYPE_CHECKING:
    from weft.grammar.guide import Guide


if TYPE_CHECKING:
    Drafter = StrEnum  # its members are known when it runs
else:
    _drafters = [name for name in registry.names("drafters") if name != "given"]  # no text comes along
    Drafter = StrEnum("Drafter", {name: name for name in ("auto", "none", *_drafters)})
    """What --speculation takes: what the registry has for a prompt alone, and auto and none."""


class Guided(StrEnum):
    auto = "auto"
    on = "on"
    off = "off"


DEFAULT = Drafter("auto")
AUTO = "eagle3"
"""What auto takes where a model directory has one."""


def own_directory(drafter: str) -> str | None:
    """What a model directory calls the directory of such a drafter; None where it needs none."""
    name: str | None = getattr(registry.load("drafters", drafter), "directory", None)
    return name


def check_output(path: Path | None, option: str) -> None:
    """Raise `InputError` if a file that a run is to end with can't be written."""
    if path is None:
        return
    if path.is_dir():
        raise InputError(f"{option}: {str(path)!r} is a directory; give the name of a file")
    if not path.parent.is_dir():
        raise InputError(f"{option}: there is no directory {str(path.parent)!r} to write to; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{option}: {str(path)!r} can't be written; its permissions forbid it")


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
    any_json: bool,
    schema: str | None,
    regex: str | None,
    ebnf: Path | None,
    choice: list[str] | None,
    wasm: Path | None = None,
    wasm_arg: str | None = None,
    lark: Path | None = None,
    strict: bool = True,
    open_objects: bool = False,
) -> Guide | None:
    """The one guide of the command line, or None."""
    from weft.grammar.guide import Guide

    options = {
        "--json": any_json or None,
        "--json-schema": schema,
        "--regex": regex,
        "--ebnf": ebnf,
        "--lark": lark,
        "--choice": choice or None,
        "--wasm": wasm,
    }
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} were given; an answer has one guide")
    if wasm_arg is not None and wasm is None:
        raise InputError("--wasm-arg is the argument of a program; give the program with --wasm")
    if not strict and schema is None:
        raise InputError("--no-strict is said of a JSON schema; give one with --json-schema")
    if open_objects and schema is None:
        raise InputError("--open-objects is said of a JSON schema; give one with --json-schema")
    if wasm is not None:
        return Guide.wasm(wasm, wasm_arg or "")
    if any_json:
        return Guide.json()
    if schema is not None:
        is_inline = schema.lstrip().startswith(("{", "[", '"', "true", "false")) or not schema.strip()
        text = schema if is_inline else read_text(Path(schema), "--json-schema")
        return Guide.json_schema(text, strict=strict, open_objects=open_objects)
    if regex is not None:
        return Guide.regex(regex)
    if ebnf is not None:
        return Guide.ebnf(read_text(ebnf, "--ebnf"))
    if lark is not None:
        return Guide.lark(read_text(lark, "--lark"))
    return Guide.choice(choice) if choice else None


def read_trigger(guide: Guide | None, trigger: str | None, max_free_tokens: int | None) -> Guide | None:
    """The guide of the command line after its trigger, if it has one."""
    from weft.grammar.guide import Guide

    if trigger is None:
        if max_free_tokens is not None:
            raise InputError("--max-free-tokens bounds the text before --after; give that, too")
        return guide
    if guide is None:
        raise InputError(
            "--after needs a guide to follow: --json, --json-schema, --regex, --ebnf, --lark, --choice or --wasm"
        )
    return Guide.after(trigger, guide, max_free_tokens=max_free_tokens)


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
    drafts: GuideDrafts = "auto" if guided is Guided.auto else guided is Guided.on
    name = drafter.value
    if name == "auto":
        own = model_directory(model) / str(own_directory(AUTO))
        name = AUTO if path is not None or own.is_dir() else "none"
    if path is not None and (name == "none" or own_directory(name) is None):
        takers = [known for known in registry.names("drafters") if own_directory(known)]
        raise InputError(f"--head is for {', '.join(takers)}; --speculation is {name}")
    if name == "none":
        return Speculation.forced(num_draft_tokens=count) if forced else Speculation.none()
    if name == "forced":
        return Speculation.forced(num_draft_tokens=count)
    chosen = Speculation.named(name, path, num_draft_tokens=count, guide_drafts=drafts)
    return Speculation.forced(chosen) if forced else chosen


def read_bias(entries: list[str]) -> dict[int, float] | None:
    """Entries TOKEN=BIAS of --logit-bias."""
    try:
        return {int(token): float(value) for token, value in (e.split("=") for e in entries)} or None
    except ValueError:
        raise InputError(f"--logit-bias is {entries}; give TOKEN_ID=BIAS, such as 17=-5 or 17=-inf") from None
