"""What an answer must look like: a `Guide`, checked when it is made, compiled when a request needs it.

A guide is plain data: a kind, a source and options. What a kind needs to read, check and translate it lies in files of
its own, which the registry names.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from weft import registry
from weft.errors import GuideError, brief
from weft.grammar.interfaces import PythonMatcher, Recognizer

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
    """What an answer must look like. Made by the class methods below; `print` shows its EBNF where it has
    one.

    Each raises `GuideError` for what is wrong at first sight. A JSON schema, also one within tools or tags, is enforced
    whole, or compiling it raises a `GuideError` that names the keyword and its place. With `strict=False` as
    much as possible is enforced, and `CompiledGuide.notes` tell of the rest.
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
    """Whether it is compiled by a library that tells how its answers end, where several could: for `on_length`."""
    is_read: bool = True
    """Whether `check` has passed. Where not, what is wrong with the text comes when it is compiled."""

    @classmethod
    def json(
        cls, *, max_whitespace: int | None = MAX_WHITESPACE, separators: tuple[str, str] | None = None
    ) -> Guide:
        """Any JSON object or array; blanks as in `json_schema`."""
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
        """JSON that a schema describes: a dict, its JSON text, or a pydantic model.

        Objects that name properties have no others, unless `additionalProperties` says so, or `open_objects` leaves
        them open, as the specification does. Properties come in the schema's order, or in any with `any_order`.
        Compiling raises `GuideError` for keywords that are not enforced; without `strict` they become notes of the
        compiled guide and of each answer.

        At most `max_whitespace` blanks in a row stand between tokens (None: any number). With `separators`, as those of
        `json.dumps` between items and after keys, (", ", ": ") say, there are no blanks but theirs, and nothing is
        left to choose: keys and punctuation are forced, which drafts can use (`Speculation.forced`).
        """
        return _make(
            "json_schema",
            schema,
            strict=strict,
            max_whitespace=max_whitespace,
            any_order=any_order,
            separators=separators,
            open_objects=open_objects,
        )

    @classmethod
    def regex(cls, pattern: str) -> Guide:
        """Text that a regular expression matches from end to end; errors in it come when it is compiled.

        Look-around, back-references and word boundaries are errors. Flags and Unicode classes are LLGuidance's.
        """
        _need_text("regex", pattern)
        return cls("regex", pattern)

    @classmethod
    def ebnf(cls, grammar: str) -> Guide:
        """Text that a grammar in GBNF describes, from its rule `root`; errors in it come when it is
        compiled.
        """
        _need_text("ebnf", grammar)
        return cls("ebnf", grammar)

    @classmethod
    def lark(cls, grammar: str) -> Guide:
        """Text that a grammar in LLGuidance's Lark describes, from its rule `start`; errors in it come when it is
        compiled.

        A special token stands as `<|name|>`, where its name has that form, or by number, as `<[128010]>`. Options that
        limit tokens, change the temperature or take text back (`max_tokens`, `temperature`, `stop`) are errors.
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
        """XGrammar's structural tag: a dict, its JSON text, or an `xgrammar.StructuralTag`; also of the older form,
        `{"structures": [{"begin": "<f>", "schema": {...}, "end": "</f>"}], "triggers": ["<f"]}`. Errors in what its
        parts hold come when it is compiled; `strict` and `open_objects` are as in `json_schema`, for the schemas
        inside.
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
        """Calls of functions, in the format of a model family: `style` is one of `weft.grammar.tool_styles()`, such as
        "llama" or "qwen_3", or "auto", which is what the chat template of the model that is asked shows.

        `tools` are OpenAI's: `{"type": "function", "function": {"name": ..., "parameters": schema}}`. `required`: text
        and calls in any order (False), at least one call (True), or exactly one call of the function that it names.
        `reasoning` is what the format has before the answer: it is open already ("enabled"), there is none
        ("disabled"), or either ("auto"). Without `parallel` there is one call at most, and nothing after it. `strict`
        and `max_whitespace` are as in `json_schema`; with `any_order` arguments may come in any order.
        """
        return _make(
            "tools",
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
        """A recogniser of your own, which says byte by byte what a text may be: `factory()` makes one for each request.
        See `weft.grammar.Recognizer`.
        """
        if not callable(factory):
            raise GuideError("recognizer needs a function that makes recognisers, one for each request")
        return cls("recognizer", f"recognizer {getattr(factory, '__qualname__', factory)}", payload=factory)

    @classmethod
    def plugin(cls, path: str | PathLike[str], arg: bytes | str = b"") -> Guide:
        """Matchers or recognisers in C: a shared library built with weft's headers (`weft.include_dir()`), and the
        argument for it. It runs in this process and is never unloaded; load none that you would not run.
        """
        path = Path(path).absolute()
        if not path.is_file():
            raise GuideError(f"plug-in {path}: no such file; give the path of a shared library")
        if not isinstance(arg, bytes | str):
            raise GuideError(f"a plug-in's arg is bytes or a text, not {type(arg).__name__}")
        data = arg.encode() if isinstance(arg, str) else arg
        return cls("plugin", f"plugin {path}", payload=(str(path), data))

    @classmethod
    def after(cls, trigger: int | str, guide: Guide, *, max_free_tokens: int | None = None) -> Guide:
        """Free text until `trigger`, then `guide`: for models that reason before they answer.

        `trigger` is a token's id or a text. A text that names a special token of the tokenizer means that token; any
        other is found wherever the text has its bytes. Free text has no special tokens and does not end the answer.
        After `max_free_tokens` tokens nothing but the trigger may come. `guide` may have a trigger, too.
        """
        return _make("after", trigger, cls.of(guide), max_free_tokens)

    @classmethod
    def wasm(
        cls,
        program: str | Path | bytes,
        arg: Any = "",
        *,
        limits: WasmLimits | None = None,
        trusted: bool = False,
    ) -> Guide:
        """What a WASM program of AICI's interface (generation 2) allows; see `docs/wasm.md`.

        `program` is a file or its content, binary (.wasm) or text (.wat). `arg` is what it reads as its argument: text,
        or what JSON can hold. A program runs within `limits`; unless it is `trusted`, it is compiled in a
        separate process.
        """
        return _make("wasm", program, arg, limits, trusted)

    @classmethod
    def unread(
        cls,
        kind: Literal["json_schema", "structural_tag"],
        text: str,
        *,
        strict: bool = True,
        open_objects: bool = False,
    ) -> Guide:
        """A guide of text that has not been read yet, as those of clients are: a thread that may take its time
        finds out what is wrong with it."""
        blanks = MAX_WHITESPACE if kind == "json_schema" else None
        return cls(kind, text, blanks, strict=strict, open_objects=open_objects, is_read=False)

    @classmethod
    def of(cls, guide: Any) -> Guide:
        """The guide itself, or one over an `xgrammar.Grammar` or `xgrammar.CompiledGrammar`."""
        if isinstance(guide, Guide):
            return guide
        kinds: dict[str, Kind] = {"Grammar": "grammar", "CompiledGrammar": "compiled"}
        kind = kinds.get(type(guide).__name__)
        if kind is None or not type(guide).__module__.startswith("xgrammar"):
            raise GuideError(
                f"{type(guide).__name__} is no guide; use Guide.json_schema, Guide.regex and the like, "
                "Guide.matcher for a class of your own, or an xgrammar Grammar or CompiledGrammar"
            )
        return cls(kind, "", payload=guide)

    def of_model(self, chat_template: str | Mapping[str, str] | None) -> Guide:
        """The guide for a model with this chat template: tools of the style "auto" get their format, any other guide is
        itself. Raises `GuideError` where the template shows no format that is known."""
        if self.kind not in registry.GUIDES_OF_MODELS:
            return self
        made: Guide = registry.load("guides of models", self.kind)(self, chat_template)
        return made

    @property
    def key(self) -> Hashable:
        """Equal for guides that compile to the same thing; None where that can't be told."""
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
        """Raises `GuideError` for what is wrong at first sight with the text of a schema or a structural tag."""
        if self.kind in registry.GUIDE_CHECKS:
            registry.load("guide checks", self.kind)(self.source)

    def grammar(self) -> Any:
        """The guide as an `xgrammar.Grammar`. Raises `GuideError` for one that does not translate, or is no
        grammar.
        """
        return registry.load("guide views", "grammar")(self)

    def __repr__(self) -> str:
        own = [one for one in fields(self)[2:] if getattr(self, one.name) != one.default]
        options = "".join(f", {one.name}={reprlib.repr(getattr(self, one.name))}" for one in own)
        return f"Guide({self.kind!r}, {brief(repr(self.source))}{options})"

    def __str__(self) -> str:
        try:
            return str(self.grammar())
        except GuideError:
            return self.source


def words(guide: Guide) -> str:
    """What messages call a guide of its kind."""
    return {"json_schema": "JSON schema", "ebnf": "EBNF", "lark": "Lark"}.get(
        guide.kind, guide.kind.replace("_", " ")
    )


def _make(kind: str, *parts: Any, **options: Any) -> Guide:
    """A guide, made by what the registry names for it. Raises `GuideError`."""
    made: Guide = registry.load("guide makers", kind)(*parts, **options)
    return made


def _need_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise GuideError(f"{what} needs a str, not {type(text).__name__}")
