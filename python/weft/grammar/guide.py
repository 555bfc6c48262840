"""`Guide`: the grammar, schema or program that constrains an answer.

A guide is plain data: a kind, a source text, options, and for some kinds an object (`payload`). The class methods
check it; it is compiled when a request needs it. The files of `kinds/`, `xgrammar/` and `aici/` parse and translate
particular kinds. They import this file, so it imports them inside functions.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from inspect import isroutine
from os import PathLike
from pathlib import Path
from re import Pattern
from typing import TYPE_CHECKING, Any, Final, Literal, get_origin

from weft.errors import GuideError, brief
from weft.grammar.interfaces import PythonMatcher, Recognizer
from weft.grammar.schema import structure

if TYPE_CHECKING:
    from weft.aici.limits import WasmLimits
    from weft.grammar.python_types import PythonType

GuideKind = Literal[
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

MaxWhitespace = int | Literal["tidy"] | None
TIDY: Final = "tidy"


@dataclass(frozen=True, eq=False, repr=False)
class Guide:
    """A constraint on an answer. Make one with the class methods below; `print` shows its EBNF if it has one.

    The class methods raise `GuideError` for errors that a quick check finds; compiling finds the others. By default a
    JSON schema, also one inside tools or tags, is enforced in full. If that is impossible, compiling raises a
    `GuideError` that names the keyword and its place. With `strict=False` as much as possible is enforced, and
    `CompiledGuide.notes` lists the rest.
    """

    kind: GuideKind
    source: str
    max_whitespace: MaxWhitespace = None
    payload: Any = None
    strict: bool = True
    any_order: bool = False
    separators: tuple[str, str] | None = None
    open_objects: bool = False
    python_type: PythonType | None = None
    """The type whose schema this is. It does not change what is compiled, so it is no part of `key`."""
    closes: bool = False
    """Whether the library that compiles it must be able to compute shortest endings, as `on_length="close"` needs."""
    is_read: bool = True
    """False for a guide of `unread`, whose text is not parsed yet. Compiling then calls `check` first."""

    @classmethod
    def json(
        cls, *, max_whitespace: MaxWhitespace = TIDY, separators: tuple[str, str] | None = None
    ) -> Guide:
        """Any JSON object or array. The options are as in `json_schema`."""
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
        max_whitespace: MaxWhitespace = TIDY,
        any_order: bool = False,
        separators: tuple[str, str] | None = None,
        open_objects: bool = False,
    ) -> Guide:
        """JSON that satisfies a schema: a dict or bool, its JSON text, or a Python type.

        A Python type is one that pydantic knows, such as a `BaseModel`, `list[Invoice]`, a dataclass or
        `Literal["a", "b"]`, or a `TypeAdapter`. `Output.parsed` is then an object of that type.

        An object schema with `properties` forbids other properties, unless `additionalProperties` allows them.
        `open_objects` allows others by default, as the JSON Schema specification does. Properties come in the
        schema's order; with `any_order`, in any order. Compiling raises `GuideError` for keywords that are not
        enforced. Without `strict` these become notes of the compiled guide and of each answer.

        By default ("tidy") one space may follow each comma and colon, and there is no other whitespace between JSON
        tokens. With a number, at most that many whitespace characters in a row may stand between any two tokens;
        with None, any number. `separators`, such as (", ", ": "), are those of `json.dumps`, and replace
        `max_whitespace`: with them no other whitespace is allowed, so keys and punctuation are forced and can be
        drafted (`Speculation.forced`).
        """
        _check_separators(separators)
        _check_max_whitespace(max_whitespace)
        python_type = _python_type(schema)
        data = _schema_data(schema if python_type is None else python_type.schema())
        structure.check(data)
        if strict:
            structure.check_spelling(data)
        return cls(
            "json_schema",
            json.dumps(data),
            max_whitespace,
            strict=bool(strict),
            any_order=bool(any_order),
            separators=separators,
            open_objects=bool(open_objects),
            python_type=python_type,
        )

    @classmethod
    def regex(cls, pattern: str) -> Guide:
        """Text that a regular expression matches in full. Compiling reports errors in the pattern.

        Look-around, back-references and word boundaries are errors. Flags and Unicode classes need LLGuidance.
        """
        _need_text("regex", pattern)
        return cls("regex", pattern)

    @classmethod
    def ebnf(cls, grammar: str) -> Guide:
        """Text that matches a GBNF grammar, whose start rule is `root`. Compiling reports errors in the grammar."""
        _need_text("ebnf", grammar)
        return cls("ebnf", grammar)

    @classmethod
    def lark(cls, grammar: str) -> Guide:
        """Text that matches a grammar in LLGuidance's Lark dialect, whose start rule is `start`. Compiling reports
        errors in the grammar.

        Write a special token as `<|name|>` if its name has that form, or by id, as in `<[128010]>`. The options
        `max_tokens`, `temperature` and `stop` are errors.
        """
        _need_text("lark", grammar)
        return cls("lark", grammar)

    @classmethod
    def choice(cls, choices: Sequence[str]) -> Guide:
        """One of the given texts."""
        if isinstance(choices, str) or not isinstance(choices, Sequence) or not choices:
            is_type = _python_type(choices) is not None
            raise GuideError(
                "choice needs a list of at least one text; a Python type is a guide itself"
                if is_type
                else "choice needs a list of at least one text"
            )
        if not all(isinstance(choice, str) and choice for choice in choices):
            raise GuideError("choice needs texts that are not empty")
        return cls("choice", json.dumps(list(dict.fromkeys(choices))))

    @classmethod
    def structural_tag(cls, tag: Any, *, strict: bool = True, open_objects: bool = False) -> Guide:
        """XGrammar's structural tag: a dict, its JSON text, or an `xgrammar.StructuralTag`. The legacy form works, too:
        `{"structures": [{"begin": "<f>", "schema": {...}, "end": "</f>"}], "triggers": ["<f"]}`.

        Compiling reports errors inside the tag's parts. `strict` and `open_objects` apply to the schemas inside, as in
        `json_schema`.
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
        max_whitespace: MaxWhitespace = TIDY,
    ) -> Guide:
        """Tool calls in the format of a model family. `style` is one of `weft.grammar.tool_styles()`, such as "llama"
        or "qwen_3". "auto" takes the format from the model's chat template.

        `tools` are in OpenAI's form: `{"type": "function", "function": {"name": ..., "parameters": schema}}`.
        `required` is False for text and calls in any order, True for at least one call, or a function's name for
        exactly one call of it. `reasoning` says whether the answer starts inside a reasoning section that the prompt
        opened ("enabled"), has none ("disabled"), or may have one ("auto"). Without `parallel` there is at most one
        call, and nothing after it. `strict`, `open_objects` and `max_whitespace` are as in `json_schema`. With
        `any_order`, arguments come in any order.
        """
        from weft.grammar.kinds.tools import tools_guide

        _check_max_whitespace(max_whitespace)
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
        """Your own matcher in Python: `factory()` makes one for each answer. See `weft.grammar.PythonMatcher`."""
        if not callable(factory):
            raise GuideError("matcher needs a function that makes matchers, one for each answer")
        return cls("matcher", f"matcher {getattr(factory, '__qualname__', factory)}", payload=factory)

    @classmethod
    def recognizer(cls, factory: Callable[[], Recognizer]) -> Guide:
        """Your own recognizer in Python, which accepts or refuses single bytes: `factory()` makes one for each answer.
        See `weft.grammar.Recognizer`."""
        if not callable(factory):
            raise GuideError("recognizer needs a function that makes recognizers, one for each answer")
        return cls("recognizer", f"recognizer {getattr(factory, '__qualname__', factory)}", payload=factory)

    @classmethod
    def plugin(cls, path: str | PathLike[str], arg: bytes | str = b"") -> Guide:
        """Matchers or recognizers in C, from a shared library built with weft's headers (`weft.include_dir()`). `arg`
        is passed to it. The library runs in this process and is never unloaded, so load only code that you trust."""
        path = Path(path).absolute()
        if not path.is_file():
            raise GuideError(f"plug-in {path}: no such file; give the path of a shared library")
        if not isinstance(arg, bytes | str):
            raise GuideError(f"a plug-in's arg is bytes or text, not {type(arg).__name__}")
        data = arg.encode() if isinstance(arg, str) else arg
        return cls("plugin", f"plugin {path}", payload=(str(path), data))

    @classmethod
    def after(cls, trigger: int | str, guide: Any, *, max_free_tokens: int | None = None) -> Guide:
        """Free text until `trigger`, then `guide`: for models that reason before they answer.

        `trigger` is a token id or a string. The name of a special token means that token. Any other string is found
        wherever its bytes appear. Free text can't contain special tokens or end the answer. After `max_free_tokens`
        tokens the trigger is forced. `guide` is anything that `Guide.of` takes, also another `after` guide.
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
        """Text that a WASM program allows. The program uses AICI's interface (generation 2); see `docs/wasm.md`.

        `program` is a file or its content, binary (.wasm) or text (.wat). `arg` is the program's argument: a string
        or any JSON value. `limits` bound its time and memory. Unless `trusted`, it is compiled in a separate process.
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
        """A guide from a client's text, without parsing it here, because that may take long. Compiling parses it
        and reports its errors."""
        max_whitespace: MaxWhitespace = TIDY if kind == "json_schema" else None
        return cls(kind, text, max_whitespace, strict=strict, open_objects=open_objects, is_read=False)

    @classmethod
    def of(cls, guide: Any) -> Guide:
        """The guide itself; the guide of a Python type, as in `json_schema`; or a guide over an `xgrammar.Grammar` or
        `xgrammar.CompiledGrammar`. Raises `GuideError` for any other object."""
        if isinstance(guide, Guide):
            return guide
        kinds: dict[str, GuideKind] = {"Grammar": "grammar", "CompiledGrammar": "compiled"}
        kind = kinds.get(type(guide).__name__)
        if kind is not None and type(guide).__module__.startswith("xgrammar"):
            return cls(kind, "", payload=guide)
        if _python_type(guide) is None:
            raise GuideError(f"{type(guide).__name__} is not a guide; use {_cure(guide)}")
        return cls.json_schema(guide)

    def of_model(self, chat_template: str | Mapping[str, str] | None) -> Guide:
        """Resolve the style "auto" of a tools guide from the model's chat template. Any other guide is returned
        unchanged. Raises `GuideError` if the template shows no known format."""
        if self.kind != "tools":
            return self
        from weft.grammar.kinds.tools import for_model

        return for_model(self, chat_template)

    @property
    def key(self) -> Hashable:
        """A cache key: guides with equal keys compile to the same result. None if no key can prove that."""
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

    def parse(self, text: str) -> Any:
        """The object that a complete answer describes, for a guide of a Python type. After a trigger, `text` is the
        part behind it. Raises `AnswerError` if the type refuses the text, and `GuideError` without a type."""
        if self.python_type is None:
            raise GuideError("the guide has no Python type; make it of one, as in Guide.json_schema(Invoice)")
        return self.python_type.parse(text)

    def check(self) -> None:
        """Check a JSON schema or a structural tag without compiling it. Raises `GuideError`. Other kinds always
        pass."""
        if self.kind == "json_schema":
            schema = _schema_data(self.source)
            structure.check(schema)
            if self.strict:
                structure.check_spelling(schema)
        elif self.kind == "structural_tag":
            from weft.grammar.xgrammar.translate import check_structural_tag

            check_structural_tag(self.source)

    def grammar(self) -> Any:
        """The guide as an `xgrammar.Grammar`. Raises `GuideError` if it has no such form."""
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


def _python_type(given: Any) -> PythonType | None:
    """The Python type that is given; None for any other object. Raises `GuideError` for a type that pydantic does not
    know."""
    package = type(given).__module__.partition(".")[0]
    is_special = get_origin(given) is not None or package in ("typing", "typing_extensions", "pydantic")
    if not isinstance(given, type) and not is_special:
        return None
    from weft.grammar.python_types import PythonType

    return PythonType(given)


def _cure(given: Any) -> str:
    """The end of the error message for an object that is no guide."""
    match given:
        case dict():
            return "Guide.json_schema(...) for a JSON schema"
        case Pattern():
            return f"Guide.regex({given.pattern!r})"
        case list() if given and all(isinstance(text, str) for text in given):
            return f"Guide.choice({reprlib.repr(given)})"
        case str():
            return "Guide.regex, Guide.choice, Guide.ebnf, or Guide.json_schema for JSON text"
        case list() | tuple():
            return "a single guide, or a list of prompts with a guide each"
        case _ if isroutine(given):
            return "Guide.tools for calls of functions, or Guide.matcher for a matcher of your own"
        case _ if hasattr(type(given), "model_json_schema") or is_dataclass(given):
            return f"its type, {type(given).__name__}"
    return "Guide.json_schema, Guide.regex and the like, a Python type, or an xgrammar Grammar or CompiledGrammar"


def _schema_data(schema: Any) -> Any:
    """The schema as plain JSON data. Raises `GuideError`."""
    if hasattr(type(schema), "model_json_schema") or is_dataclass(schema):
        raise GuideError(f"a JSON schema can't be made of an object; give {_cure(schema)}")
    try:
        return json.loads(schema if isinstance(schema, str) else json.dumps(schema))
    except (TypeError, ValueError) as error:
        hint = " (a str is read as JSON, not as a path)" if isinstance(schema, str) else ""
        raise GuideError(f"the JSON schema is not valid JSON{hint}: {error}") from None
    except RecursionError:
        raise GuideError("the JSON schema is nested too deeply") from None


def _check_max_whitespace(max_whitespace: Any) -> None:
    """Raise `GuideError` unless it is a `MaxWhitespace`, with a number from 1 on."""
    if max_whitespace is None or max_whitespace == TIDY:
        return
    if type(max_whitespace) is not int or max_whitespace < 1:
        raise GuideError(
            f"max_whitespace is {max_whitespace!r}; it must be 'tidy', a number from 1 on, or None for no bound"
        )


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
