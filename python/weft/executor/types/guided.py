"""Settings of guided decoding: `GuidedDecodingParams` of a request, `GuidedDecodingConfig` of an executor."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Annotated, ClassVar, Literal

from weft import registry
from weft.core import ValueKind
from weft.errors import InputError
from weft.executor.types.fields import ByName, Bytes, Count, NotNegative, Several, Text, Within
from weft.executor.types.settings import Settings
from weft.grammar import Guide


class GuideType(ByName, IntEnum):
    """The format of a guide's text. weft's extensions are `HANDLE`, the name of a registered guide, and `LARK`, a
    grammar in LLGuidance's Lark.
    """

    JSON = 0
    JSON_SCHEMA = 1
    REGEX = 2
    EBNF_GRAMMAR = 3
    STRUCTURAL_TAG = 4
    HANDLE = 100
    LARK = 101


_WITH_SCHEMAS: dict[GuideType, tuple[Callable[..., Guide], Literal["json_schema", "structural_tag"]]] = {
    GuideType.JSON_SCHEMA: (Guide.json_schema, "json_schema"),
    GuideType.STRUCTURAL_TAG: (Guide.structural_tag, "structural_tag"),
}
_MAKERS: dict[GuideType, Callable[[str], Guide]] = {
    GuideType.REGEX: Guide.regex,
    GuideType.EBNF_GRAMMAR: Guide.ebnf,
    GuideType.LARK: Guide.lark,
}


class GuidedDecodingParams(Settings):
    """The guide of one request. `guide` is the text of a JSON schema, a regular expression, a grammar in GBNF or
    Lark, or a structural tag of XGrammar; for `HANDLE` it is a name. `GuideType.JSON` (any JSON object or array) takes
    no text.

    The text is checked when it is compiled. If it does not compile, the request gets an error response. Raises
    `InputError` if the text is missing.

    weft's extensions: with `strict`, a JSON schema (also in a structural tag) is enforced completely. If that is not
    possible, the error names the keyword and its place. Without `strict`, the supported part is enforced, and
    `Result.guide_notes` lists the rest. Objects with named properties have no others, unless the schema's
    `additionalProperties` or `open_objects` allows them. A registered guide (`HANDLE`) keeps the options of its
    registration."""

    guide_type: GuideType
    guide: str | None = None
    strict: bool = True
    open_objects: bool = False

    GuideType: ClassVar[type[GuideType]] = GuideType

    def check(self) -> None:
        if self.guide_type is GuideType.JSON:
            if self.guide is not None:
                raise InputError(
                    "guide is given for JSON, which takes none; for a schema use GuideType.JSON_SCHEMA"
                )
        elif not isinstance(self.guide, str) or not self.guide:
            raise InputError(
                f"guide is {self.guide!r}; {self.guide_type.name} needs a text (only JSON does without one)"
            )

    @classmethod
    def handle(cls, name: str) -> GuidedDecodingParams:
        """The parameters for a guide registered by `Executor.register_guide(name, guide)`."""
        return cls(GuideType.HANDLE, name)

    def to_guide(self) -> Guide:
        """Convert the parameters to a guide. Raises `GuideError` for a text that can't be parsed, and `InputError` for
        a handle."""
        if self.guide_type is GuideType.JSON:
            return Guide.json()
        if self.guide_type is GuideType.HANDLE or self.guide is None:
            raise InputError(f"the guide {self.guide!r} is kept by the executor that it was registered with")
        if self.guide_type in _WITH_SCHEMAS:
            maker, _ = _WITH_SCHEMAS[self.guide_type]
            return maker(self.guide, strict=self.strict, open_objects=self.open_objects)
        return _MAKERS[self.guide_type](self.guide)

    def unread_guide(self) -> Guide:
        """Like `to_guide`, but the text is parsed only when the guide is compiled."""
        if self.guide_type not in _WITH_SCHEMAS or self.guide is None:
            return self.to_guide()
        _, kind = _WITH_SCHEMAS[self.guide_type]
        return Guide.unread(kind, self.guide, strict=self.strict, open_objects=self.open_objects)


class GuidedDecodingBackend(ByName, Enum):
    """The grammar library that compiles guides. `AUTO`, weft's extension, uses for each guide the library that enforces
    more of it.
    """

    XGRAMMAR = 0
    LLGUIDANCE = 1
    AUTO = 100
    # Add a member for each other library of the registry. `vars()` is the namespace of the enum's body.
    _ignore_ = "members value library"
    members = vars()
    for value, library in enumerate(registry.names("grammars"), AUTO + 1):
        if library.upper() not in members:
            members[library.upper()] = value


class GuidedDecodingConfig(Settings):
    """Allows guided requests; without it they get an error response.

    The vocabulary for guides is that of the model's tokenizer, unless it is given here: `encoded_vocab` (each token as
    the tokenizer writes it, by id), `tokenizer_str` (the text of tokenizer.json, which defines how tokens are written)
    and `stop_token_ids` (the tokens that end guided answers).

    weft's extensions:

    - `untrusted`: guides are untrusted input. They are compiled under tighter limits, and first tried in another
      process (`docs/untrusted.md`).
    - `mask_time_limit_s`: a guide that takes more seconds than this for one token ends its request (None: the default
      of `weft.EngineConfig`).
    - `programs_ahead` and `max_program_bytes` limit WebAssembly programs that have started (`docs/wasm.md`). The first
      is the number of programs without a slot (None: the number of slots). The second is the memory of all programs
      (None: 384 MiB for each slot and each program without one).
    """

    backend: GuidedDecodingBackend = GuidedDecodingBackend.AUTO
    encoded_vocab: Several[str] | None = None
    tokenizer_str: Text | None = None
    stop_token_ids: Several[NotNegative] | None = None
    untrusted: bool = False
    mask_time_limit_s: (
        Annotated[float, Within(ValueKind.NUMBER, 0, 1e6, "0 seconds (no limit) or more")] | None
    ) = None
    programs_ahead: Count | None = None
    max_program_bytes: Bytes | None = None

    GuidedDecodingBackend: ClassVar[type[GuidedDecodingBackend]] = GuidedDecodingBackend
