"""`Guide`: the form that an answer must have. It is checked when it is made, and compiled when a request needs it.

A guide is plain data: a kind, a source text and options. The files of `kinds/`, `xgrammar/` and `aici/` read, check
and translate particular kinds. They import this file, so it imports them inside functions.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from weft.errors import GuideError, brief
from weft.grammar.interfaces import PythonMatcher, Recognizer
from weft.grammar.schema import structure

if TYPE_CHECKING:
    from weft.aici.limits import WasmLimits

Kind = Literal[
    "json_schema",
    "regex",
    "ebnf",
    "lark",
    "choice",
    "structural_tag",
    "grammar",
    "compiled",
    "matcher",
    "after",
    "wasm",
    "recognizer",
    "plugin",
    "tools",
]

MAX_WHITESPACE = 8


@dataclass(frozen=True, eq=False, repr=False)
class Guide:
    """The form that an answer must have. The class methods below make one; `print` shows its EBNF where it has one.

    Each raises `GuideError` for errors that show at first sight. A JSON schema, also one within tools or tags, is
    enforced whole; otherwise compiling it raises a `GuideError` that names the keyword and its place. With
    `strict=False` as much as possible is enforced, and `CompiledGuide.notes` list the rest.
    """

    kind: Kind
    source: str
    max_whitespace: int | None = None
    payload: Any = None
    strict: bool = True
    any_order: bool = False
    separators: tuple[str, str] | None = None
    open_objects: bool = False
    closes: bool = False
    """Whether a library must compile it that knows the shortest endings of answers, which `on_length` needs."""
    is_read: bool = True
    """Whether `check` has passed. If not, errors in the source show when the guide is compiled."""

    @classmethod
    def json(
        cls, *, max_whitespace: int | None = MAX_WHITESPACE, separators: tuple[str, str] | None = None
    ) -> Guide:
        """Any JSON object or array; whitespace as in `json_schema`."""
        return cls.json_schema(
            {"anyOf": [{"type": "object"}, {"type": "array"}]},
            max_whitespace=max_whitespace,
            separators=separators,
        )

    @classmethod
    def json_schema(
        cls,
        schema: Any,
        *,
        strict: bool = True,
        max_whitespace: int | None = MAX_WHITESPACE,
        any_order: bool = False,
        separators: tuple[str, str] | None = None,
        open_objects: bool = False,
    ) -> Guide:
        """JSON that satisfies a schema: a dict, its JSON text, or a pydantic model.

        Objects that name properties have no others, unless `additionalProperties` allows them. `open_objects` leaves
        such objects open, as the specification does. Properties come in the schema's order, or with `any_order` in
        any order. Compiling raises `GuideError` for keywords that are not enforced; without `strict` they become
        notes of the compiled guide and of each answer.

        At most `max_whitespace` characters of whitespace in a row stand between JSON's tokens (None: any number).
        `separators`, such as (", ", ": "), are those of `json.dumps` between items and after keys. With them there is
        no other whitespace: keys and punctuation are forced, and can be drafted (`Speculation.forced`).
        """
        _check_separators(separators)
        if max_whitespace is not None and (type(max_whitespace) is not int or max_whitespace < 1):
            raise GuideError(
                f"max_whitespace is {max_whitespace!r}; it must be a number from 1 on, or None for no bound"
            )
        data = _schema_data(schema)
        structure.check(data)
        return cls(
            "json_schema",
            json.dumps(data),
            max_whitespace,
            strict=bool(strict),
            any_order=bool(any_order),
            separators=separators,
            open_objects=bool(open_objects),
        )

    @classmethod
    def regex(cls, pattern: str) -> Guide:
        """Text that a regular expression matches from end to end. Errors in it show when it is compiled.

        Look-around, back-references and word boundaries are errors. Flags and Unicode classes need LLGuidance.
        """
        _need_text("regex", pattern)
        return cls("regex", pattern)

    @classmethod
    def ebnf(cls, grammar: str) -> Guide:
        """Text that a grammar in GBNF describes, from its rule `root`. Errors in it show when it is compiled."""
        _need_text("ebnf", grammar)
        return cls("ebnf", grammar)

    @classmethod
    def lark(cls, grammar: str) -> Guide:
        """Text that a grammar in LLGuidance's Lark describes, from its rule `start`. Errors in it show when it is
        compiled.

        A special token is written `<|name|>`, where its name has that form, or by number, as in `<[128010]>`. Options
        that limit tokens, change the temperature or take text back (`max_tokens`, `temperature`, `stop`) are errors.
        """
        _need_text("lark", grammar)
        return cls("lark", grammar)

    @classmethod
    def choice(cls, choices: Sequence[str]) -> Guide:
        """One of the given texts."""
        if isinstance(choices, str) or not isinstance(choices, Sequence) or not choices:
            raise GuideError("choice needs a list of at least one text")
        if not all(isinstance(choice, str) and choice for choice in choices):
            raise GuideError("choice needs texts that are not empty")
        return cls("choice", json.dumps(list(dict.fromkeys(choices))))

    @classmethod
    def structural_tag(cls, tag: Any, *, strict: bool = True, open_objects: bool = False) -> Guide:
        """XGrammar's structural tag: a dict, its JSON text, or an `xgrammar.StructuralTag`. The older form is
        accepted, too: `{"structures": [{"begin": "<f>", "schema": {...}, "end": "</f>"}], "triggers": ["<f"]}`.

        Errors inside its parts show when it is compiled. `strict` and `open_objects` are as in `json_schema`, for the
        schemas inside.
        """
        if hasattr(tag, "model_dump_json"):
            tag = tag.model_dump_json()
        try:
            source = tag if isinstance(tag, str) else json.dumps(tag)
        except (TypeError, ValueError, RecursionError) as error:
            raise GuideError(f"the structural tag is not plain JSON data: {error}") from None
        guide = cls("structural_tag", source, strict=bool(strict), open_objects=bool(open_objects))
        guide.check()
        return guide

    @classmethod
    def tools(
        cls,
        tools: Sequence[Any],
        *,
        style: str = "auto",
        required: bool | str = False,
        reasoning: Literal["enabled", "disabled", "auto"] = "disabled",
        parallel: bool = True,
        any_order: bool = False,
        strict: bool = True,
        open_objects: bool = False,
        max_whitespace: int | None = MAX_WHITESPACE,
    ) -> Guide:
        """Calls of functions, in the format of a model family. `style` is one of `weft.grammar.tool_styles()`, such
        as "llama" or "qwen_3", or "auto": the format that the model's chat template shows.

        `tools` are OpenAI's: `{"type": "function", "function": {"name": ..., "parameters": schema}}`. `required` is
        False for text and calls in any order, True for at least one call, or the name of a function for exactly one
        call of it. `reasoning` is the part of the format before the answer: it is open already ("enabled"), absent
        ("disabled"), or either ("auto"). Without `parallel` there is at most one call, and nothing after it. `strict`
        and `max_whitespace` are as in `json_schema`; with `any_order`, arguments come in any order.
        """
        from weft.grammar.kinds.tools import tools_guide

        return tools_guide(
            tools,
            style,
            required,
            reasoning=reasoning,
            parallel=parallel,
            any_order=any_order,
            strict=strict,
            open_objects=open_objects,
            max_whitespace=max_whitespace,
        )

    @classmethod
    def matcher(cls, factory: Callable[[], PythonMatcher]) -> Guide:
        """A matcher of your own: `factory()` makes one for each request. See `weft.grammar.PythonMatcher`."""
        if not callable(factory):
            raise GuideError("matcher needs a function that makes matchers, one for each request")
        return cls("matcher", f"matcher {getattr(factory, '__qualname__', factory)}", payload=factory)

    @classmethod
    def recognizer(cls, factory: Callable[[], Recognizer]) -> Guide:
        """A recognizer of your own, which decides byte by byte: `factory()` makes one for each request. See
        `weft.grammar.Recognizer`."""
        if not callable(factory):
            raise GuideError("recognizer needs a function that makes recognisers, one for each request")
        return cls("recognizer", f"recognizer {getattr(factory, '__qualname__', factory)}", payload=factory)

    @classmethod
    def plugin(cls, path: str | PathLike[str], arg: bytes | str = b"") -> Guide:
        """Matchers or recognizers in C: a shared library built with weft's headers (`weft.include_dir()`), and the
        argument for it. It runs in this process and is never unloaded: load only libraries that you would run."""
        path = Path(path).absolute()
        if not path.is_file():
            raise GuideError(f"plug-in {path}: no such file; give the path of a shared library")
        if not isinstance(arg, bytes | str):
            raise GuideError(f"a plug-in's arg is bytes or text, not {type(arg).__name__}")
        data = arg.encode() if isinstance(arg, str) else arg
        return cls("plugin", f"plugin {path}", payload=(str(path), data))

    @classmethod
    def after(cls, trigger: int | str, guide: Guide, *, max_free_tokens: int | None = None) -> Guide:
        """Free text until `trigger`, then `guide`: for models that reason before they answer.

        `trigger` is a token id or a text. A text that names a special token of the tokenizer means that token; any
        other text is found wherever its bytes appear. Free text has no special tokens and does not end the answer.
        After `max_free_tokens` tokens only the trigger may follow. `guide` may have a trigger itself.
        """
        from weft.grammar.kinds.after import After

        after = After(trigger, cls.of(guide), max_free_tokens)
        after.check()
        return after.made()

    @classmethod
    def wasm(
        cls,
        program: str | Path | bytes,
        arg: Any = "",
        *,
        limits: WasmLimits | None = None,
        trusted: bool = False,
    ) -> Guide:
        """Text that a WASM program of AICI's interface (generation 2) allows; see `docs/wasm.md`.

        `program` is a file or its content, binary (.wasm) or text (.wat). `arg` is the program's argument: text, or
        any JSON value. A program runs within `limits`. Unless it is `trusted`, it is compiled in a separate process.
        """
        from weft.aici.source import WasmSource

        source = WasmSource.read(program, arg, limits, trusted)
        return cls("wasm", str(source), payload=source)

    @classmethod
    def unread(
        cls,
        kind: Literal["json_schema", "structural_tag"],
        text: str,
        *,
        strict: bool = True,
        open_objects: bool = False,
    ) -> Guide:
        """A guide of a client's text that has not been parsed. A compile thread parses it later, since that may take
        long, and reports its errors."""
        max_whitespace = MAX_WHITESPACE if kind == "json_schema" else None
        return cls(kind, text, max_whitespace, strict=strict, open_objects=open_objects, is_read=False)

    @classmethod
    def of(cls, guide: Any) -> Guide:
        """The guide itself, or one over an `xgrammar.Grammar` or `xgrammar.CompiledGrammar`."""
        if isinstance(guide, Guide):
            return guide
        kinds: dict[str, Kind] = {"Grammar": "grammar", "CompiledGrammar": "compiled"}
        kind = kinds.get(type(guide).__name__)
        if kind is None or not type(guide).__module__.startswith("xgrammar"):
            raise GuideError(
                f"{type(guide).__name__} is not a guide; use Guide.json_schema, Guide.regex and the like, "
                "Guide.matcher for a class of your own, or an xgrammar Grammar or CompiledGrammar"
            )
        return cls(kind, "", payload=guide)

    def of_model(self, chat_template: str | Mapping[str, str] | None) -> Guide:
        """The guide for a model with this chat template: tools of the style "auto" get their format; any other guide
        is returned unchanged. Raises `GuideError` where the template shows no known format."""
        if self.kind != "tools":
            return self
        from weft.grammar.kinds.tools import for_model

        return for_model(self, chat_template)

    @property
    def key(self) -> Hashable:
        """Equal for guides that compile to the same result; None where equality can't be decided."""
        if self.payload is not None:
            content = getattr(self.payload, "guide_key", None)
            return None if content is None else (self.kind, self.source, content)
        options = (
            self.max_whitespace,
            self.strict,
            self.any_order,
            self.separators,
            self.open_objects,
            self.closes,
        )
        return (self.kind, self.source, *options)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Guide) and self.key is not None and self.key == other.key)

    def __hash__(self) -> int:
        return id(self) if self.key is None else hash(self.key)

    def check(self) -> None:
        """Raise `GuideError` for errors that show at first sight in a JSON schema or a structural tag."""
        if self.kind == "json_schema":
            structure.check(_schema_data(self.source))
        elif self.kind == "structural_tag":
            from weft.grammar.xgrammar.translate import check_structural_tag

            check_structural_tag(self.source)

    def grammar(self) -> Any:
        """The guide as an `xgrammar.Grammar`. Raises `GuideError` for a guide that is not a grammar, or does not
        translate."""
        from weft.grammar.xgrammar.translate import grammar_of

        return grammar_of(self)

    def __repr__(self) -> str:
        changed = [option for option in fields(self)[2:] if getattr(self, option.name) != option.default]
        options = "".join(f", {option.name}={reprlib.repr(getattr(self, option.name))}" for option in changed)
        return f"Guide({self.kind!r}, {brief(repr(self.source))}{options})"

    def __str__(self) -> str:
        try:
            return str(self.grammar())
        except GuideError:
            return self.source


def words(guide: Guide) -> str:
    """The name of a guide's kind in messages."""
    return {"json_schema": "JSON schema", "ebnf": "EBNF", "lark": "Lark"}.get(
        guide.kind, guide.kind.replace("_", " ")
    )


def _need_text(kind: str, text: object) -> None:
    if not isinstance(text, str):
        raise GuideError(f"{kind} needs a str, not {type(text).__name__}")


def _schema_data(schema: Any) -> Any:
    """The schema as plain JSON data."""
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    elif hasattr(schema, "json_schema") and callable(schema.json_schema):
        schema = schema.json_schema()
    try:
        return json.loads(schema if isinstance(schema, str) else json.dumps(schema))
    except (TypeError, ValueError) as error:
        hint = " (a str is read as JSON, not as a path)" if isinstance(schema, str) else ""
        raise GuideError(f"the JSON schema is not valid JSON{hint}: {error}") from None
    except RecursionError:
        raise GuideError("the JSON schema is nested too deeply") from None


def _check_separators(separators: Any) -> None:
    """Raise `GuideError` unless separators are a comma and a colon, each with spaces around it or none."""
    if separators is None:
        return
    fits = isinstance(separators, tuple) and len(separators) == 2
    if not fits or any(
        not isinstance(text, str) or text.strip(" ") != mark
        for text, mark in zip(separators, ",:", strict=True)
    ):
        raise GuideError(
            f"separators is {separators!r}; it must be a comma and a colon with spaces or none, as (', ', ': ')"
        )
