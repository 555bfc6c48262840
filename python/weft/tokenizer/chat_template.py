"""Renders chat templates in the Jinja dialect of Hugging Face checkpoints.

Templates are untrusted programs. They run in Jinja's sandbox and see only plain data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from weft.errors import InputError

MARK = "\ue000weft: the last message goes on here\ue001 "
"""Is appended to the last message before rendering, if the answer continues that message: the text before the mark is
the prompt. Texts never contain the mark. If its last space is missing from the output, the template trims messages."""
GUARDS = ("\ufdd0", "\ufdd1")
"""Surround the names of special tokens in the texts of a conversation, so that the template's own are known. No text
has these characters: Unicode reserves them for the inside of programs."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys that may hold a message's reasoning. Most templates read the first; the template of gpt-oss reads the
second."""

MAX_DEPTH = 250
"""The maximum nesting depth of data in a conversation."""

PARTS = re.compile(r"""\bfor\s+\w+\s+in\s+(?:[\w.]+(?:\.content\b|\[['"]content['"]\])|content\b)""")


class Generation(Extension):
    """`{% generation %}`, which marks a model's output for training. Here it renders its body."""

    tags = {"generation"}  # noqa: RUF012  # as in Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(
            line
        )


class PlainNamespace(Namespace):
    """A Jinja namespace that refuses names with a leading underscore, which give access to Python's internals."""

    def __init__(self, /, *given: Any, **values: Any) -> None:
        attributes = dict(*given, **values)
        for name in attributes:
            _check_name(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class PlainDict:
    """The name `dict` of templates, without access to the class."""

    def __call__(self, *given: Any, **values: Any) -> dict[Any, Any]:
        return dict(*given, **values)

    def fromkeys(self, *given: Any) -> dict[Any, Any]:
        """`dict.fromkeys`."""
        return dict.fromkeys(*given)


class ChatText(str):
    """A rendered conversation. `special` are the places (begin, end) of the special tokens that the template wrote."""

    special: tuple[tuple[int, int], ...] = ()


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    arguments: Mapping[str, Any],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = False,
    continue_final_message: bool = False,
    special: re.Pattern[str] | None = None,
) -> ChatText:
    """Render a conversation with a template. `special` matches the names of special tokens; with it, the result has
    their places. Raises `InputError` if the template refuses the conversation or fails."""
    if add_generation_prompt and continue_final_message:
        raise InputError(
            "add_generation_prompt opens a new message, continue_final_message does not; give one"
        )
    chat = [_message(plain(message)) for message in messages]
    shown, named = plain(tools), {"documents": None, **plain(arguments)}
    if special is not None:
        chat, shown = _guarded(chat, special), _guarded(shown, special)
        names = special.fullmatch
        named = {
            name: value if isinstance(value, str) and names(value) else _guarded(value, special)
            for name, value in named.items()
        }
    if continue_final_message:
        _mark(chat)
    try:
        text = _rendered(template, chat, tools=shown, add_generation_prompt=add_generation_prompt, **named)
    except jinja2.TemplateSyntaxError as error:
        raise InputError(f"the chat template can't be read: line {error.lineno}: {error.message}") from None
    except Exception as error:  # a template can raise any exception
        raise InputError(f"the chat template refuses this conversation: {error}") from error
    text = _until_mark(text) if continue_final_message else text
    return ChatText(text) if special is None else _unguarded(text, special)


@lru_cache(maxsize=16)
def takes_parts(template: str) -> bool:
    """Whether a template iterates over the parts of a message's content. Such a template needs a list of parts."""
    return PARTS.search(template) is not None


def plain(value: Any, depth: int = 0) -> Any:
    """Copy data into JSON's types. Raises `InputError` for other types, and for data nested deeper than `MAX_DEPTH`."""
    # A template must not reach methods of other objects, nor overridden methods of subclasses of str, int and float.
    if depth > MAX_DEPTH:
        raise InputError(f"a conversation nests more than {MAX_DEPTH} deep")
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case Mapping():
            return {plain(key, depth): plain(item, depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [plain(item, depth + 1) for item in value]
    if callable(getattr(value, "model_dump", None)):  # pydantic models, which OpenAI's client returns
        return plain(value.model_dump(), depth)
    raise InputError(
        f"messages and tools are plain JSON data, but they contain a {type(value).__name__}; a tool is "
        '{"type": "function", "function": {"name": ..., "parameters": ...}}'
    )


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: without keys whose value is None, and with its reasoning under every key
    that templates read."""
    kept = {key: value for key, value in message.items() if value is not None}
    reasoning = next((kept[name] for name in REASONING if name in kept), None)
    return kept if reasoning is None else {"thinking": reasoning, **kept, "reasoning_content": reasoning}


def _rendered(template: str, chat: list[dict[str, Any]], /, **variables: Any) -> str:
    """The rendered text. If rendering fails, it is tried again with empty content in messages that have none."""
    compiled = _compiled(template)
    try:
        return compiled.render(messages=chat, **variables)
    except Exception:
        # Some templates read the content of every message, but a message with tool calls need not have any.
        filled = [{"content": "", **message} for message in chat]
        if filled == chat:
            raise
        with suppress(Exception):
            return compiled.render(messages=filled, **variables)
        raise


def _guarded(value: Any, special: re.Pattern[str]) -> Any:
    """A copy of plain data, with `GUARDS` around the names of special tokens in texts."""
    opening, closing = GUARDS
    match value:
        case str():
            text = value.replace(opening, "").replace(closing, "")
            return special.sub(rf"{opening}\g<0>{closing}", text)
        case dict():
            return {key: _guarded(item, special) for key, item in value.items()}
        case list():
            return [_guarded(item, special) for item in value]
    return value


def _unguarded(text: str, special: re.Pattern[str]) -> ChatText:
    """The text without `GUARDS`. The names without guards are the template's."""
    opening, closing = GUARDS
    pieces: list[str] = []
    places: list[tuple[int, int]] = []
    at = size = 0
    for found in re.finditer(
        rf"{opening}(?:{special.pattern}){closing}|{special.pattern}|[{opening}{closing}]", text
    ):
        name = found[0].strip("".join(GUARDS))
        pieces += [text[at : found.start()], name]
        size += found.start() - at + len(name)
        if name == found[0]:
            places.append((size - len(name), size))
        at = found.end()
    result = ChatText("".join([*pieces, text[at:]]))
    result.special = tuple(places)
    return result


def _mark(chat: list[dict[str, Any]]) -> None:
    """Append the mark to the last message's text. Raises `InputError` if it has no text."""
    content = chat[-1].get("content") if chat else None
    if isinstance(content, str):
        chat[-1]["content"] = content + MARK
        return
    texts = [part for part in content or () if isinstance(part, dict) and isinstance(part.get("text"), str)]
    if not texts:
        raise InputError("continue_final_message needs a last message with a text to continue")
    texts[-1]["text"] += MARK


def _until_mark(text: str) -> str:
    """The text before the mark. Raises `InputError` if the template dropped the mark."""
    place = text.rfind(MARK.strip())
    if place < 0:
        raise InputError("the chat template does not show the last message whole, so it can't be continued")
    return text[:place] if text.startswith(MARK, place) else text[:place].rstrip()


@lru_cache(maxsize=16)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "namespace": PlainNamespace,
        "dict": PlainDict(),
    }
    return environment.from_string(template)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson` as plain JSON. Jinja's own filter would escape HTML's characters."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace may not hold {name!r}")
