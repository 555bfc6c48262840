"""Reads the guide that the command line gives. Errors about it begin with the name of its option."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from weft.cli import options as o
from weft.cli.inputs import read_text
from weft.errors import GuideError, InputError

if TYPE_CHECKING:
    from weft.grammar.guide import Guide

NEEDED = "--json, --json-schema, --regex, --ebnf, --lark, --choice, --structural-tag, --tools or --wasm"


@dataclass(frozen=True)
class GuideOptions:
    """The guide options of the command line."""

    any_json: o.AnyJson = False
    json_schema: o.JsonSchema = None
    strict: o.Strict = True
    open_objects: o.OpenObjects = False
    regex: o.Regex = None
    ebnf: o.Ebnf = None
    lark: o.Lark = None
    choice: o.Choice = None
    structural_tag: o.StructuralTag = None
    wasm: o.Wasm = None
    wasm_arg: o.WasmArg = None
    after: o.After = None
    max_free_tokens: o.MaxFreeTokens = None
    tools: o.Tools = None
    tool_style: o.ToolStyle = "auto"
    tool_choice: o.ToolChoice = "auto"

    @property
    def given(self) -> dict[str, Any]:
        """The options on the command line that give a guide, with their values."""
        options = {
            "--json": self.any_json or None,
            "--json-schema": self.json_schema,
            "--regex": self.regex,
            "--ebnf": self.ebnf,
            "--lark": self.lark,
            "--choice": self.choice or None,
            "--structural-tag": self.structural_tag,
            "--tools": self.tools,
            "--wasm": self.wasm,
        }
        return {name: value for name, value in options.items() if value is not None}

    @property
    def source(self) -> str:
        """The guide's name in errors: its option, and the file that the option names, if any."""
        for name, value in self.given.items():
            is_file = isinstance(value, Path) or (name == "--json-schema" and not is_inline(value))
            return f"{name} {str(value)!r}" if is_file else name
        return ""

    def check(self) -> None:
        """Raise `InputError` for options that exclude each other, or that need another option."""
        if len(self.given) > 1:
            raise InputError(f"{' and '.join(self.given)} were given; an answer has one guide")
        if self.wasm_arg is not None and self.wasm is None:
            raise InputError("--wasm-arg is the argument of a program; give the program with --wasm")
        is_json = bool({"--json-schema", "--tools", "--structural-tag"} & self.given.keys())
        if not self.strict and not is_json:
            raise InputError("--no-strict is about a JSON schema; give one with --json-schema")
        if self.open_objects and not is_json:
            raise InputError("--open-objects is about a JSON schema; give one with --json-schema")
        if self.tools is None and (self.tool_style, self.tool_choice) != ("auto", "auto"):
            raise InputError("--tool-style and --tool-choice are about tools; give them with --tools")
        if self.after is None and self.max_free_tokens is not None:
            raise InputError("--max-free-tokens bounds the text before --after; give that, too")
        if self.after is not None and not self.given:
            raise InputError(f"--after needs a guide to follow: {NEEDED}")


def with_guide_options(command: Callable[..., None]) -> Callable[..., None]:
    """A decorator that replaces a command's parameter `guide_options` by an option for each field of `GuideOptions`."""
    hints = get_type_hints(GuideOptions, include_extras=True)
    options = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
        for field in fields(GuideOptions)
    ]
    parameters: list[Parameter] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        parameters += options if parameter.name == "guide_options" else [parameter]

    @wraps(command)
    def run(**given: Any) -> None:
        guide = GuideOptions(**{option.name: given.pop(option.name) for option in options})
        command(guide_options=guide, **given)

    setattr(run, "__signature__", Signature(parameters))  # noqa: B010  # for mypy
    return run


def is_inline(schema: str) -> bool:
    """Whether the value of --json-schema is a schema rather than a file name."""
    return schema.lstrip().startswith(("{", "[", '"', "true", "false")) or not schema.strip()


@contextmanager
def naming(source: str) -> Iterator[None]:
    """Prefix errors about the guide with its name on the command line."""
    try:
        yield
    except GuideError as error:
        raise GuideError(f"{source}: {error}") from None


def read_guide(options: GuideOptions) -> Guide | None:
    """Return the guide that the command line gives, or None."""
    from weft.grammar.guide import Guide

    options.check()
    if not options.given:
        return None
    with naming(options.source):
        guide = _made(options)
        if options.after is None:
            return guide
        return Guide.after(options.after, guide, max_free_tokens=options.max_free_tokens)


def read_tools(path: Path | None) -> list[Any] | None:
    """Return the tools in a file, which holds a JSON list of functions or a single function."""
    if path is None:
        return None
    data = read_json_file(path, "--tools")
    return data if isinstance(data, list) else [data]


def read_json_file(path: Path, option: str) -> Any:
    """Return the parsed JSON of a file. Errors name `option`, which gave the file."""
    return _json(read_text(path, option), f"{option} {str(path)!r}")


def _json(text: str, source: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{source}: this is not valid JSON: {error}") from None
    except RecursionError:
        raise InputError(f"{source}: its brackets nest too deep") from None


def _made(options: GuideOptions) -> Guide:
    from weft.grammar.guide import Guide

    strict, opened = options.strict, options.open_objects
    ((name, value),) = options.given.items()
    match name:
        case "--json-schema":
            text = value if is_inline(value) else read_text(Path(value), name)
            return Guide.json_schema(_json(text, options.source), strict=strict, open_objects=opened)
        case "--structural-tag":
            return Guide.structural_tag(read_json_file(value, name), strict=strict, open_objects=opened)
        case "--tools":
            required = {"auto": False, "required": True}.get(options.tool_choice, options.tool_choice)
            tools = read_tools(value) or []
            return Guide.tools(
                tools, style=options.tool_style, required=required, strict=strict, open_objects=opened
            )
        case "--regex":
            return Guide.regex(value)
        case "--ebnf":
            return Guide.ebnf(read_text(value, name))
        case "--lark":
            return Guide.lark(read_text(value, name))
        case "--choice":
            return Guide.choice(value)
        case "--wasm":
            return Guide.wasm(value, options.wasm_arg or "")
    return Guide.json()
