"""What answers must look like: `GuidedDecodingParams` of a request, `GuidedDecodingConfig` of an executor."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Annotated, ClassVar, Literal

from weft import registry
from weft.core import Kind
from weft.errors import InputError
from weft.executor.types.fields import ByName, Bytes, Count, NotNegative, Several, Text, Within
from weft.executor.types.settings import Settings
from weft.grammar import Guide


class GuideType(ByName, IntEnum):
    """What the text of a guide is. Weft's own are `HANDLE`, the name of a guide that the executor keeps, and `LARK`, a
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
    """What one answer must look like: `guide` is the text of a JSON schema, a regular expression, a grammar in GBNF or
    Lark, or XGrammar's structural tag. `GuideType.JSON` (any JSON object or array) takes none.

    Whether the text is right shows when it is compiled: a guide that does not compile is the error of its request.
    weft's own: JSON schemas, those of structural tags too, are enforced whole where they are `strict`, or are an error
    that names the keyword and its place; else what can be enforced is, and `Result.guide_notes` tell of the rest.
    Their objects that name properties have no others, unless `open_objects`. (A guide under a name has options of its
    own.)
    Raises `InputError` where the text is missing.
    """

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
        """The guide that `Executor.register_guide(name, guide)` compiled and keeps."""
        return cls(GuideType.HANDLE, name)

    def to_guide(self) -> Guide:
        """The guide itself. Raises `GuideError` for a text that is wrong at first sight; for a handle, `InputError`."""
        if self.guide_type is GuideType.JSON:
            return Guide.json()
        if self.guide_type is GuideType.HANDLE or self.guide is None:
            raise InputError(f"the guide {self.guide!r} is kept by the executor that it was registered with")
        if self.guide_type in _WITH_SCHEMAS:
            maker, _ = _WITH_SCHEMAS[self.guide_type]
            return maker(self.guide, strict=self.strict, open_objects=self.open_objects)
        return _MAKERS[self.guide_type](self.guide)

    def unread_guide(self) -> Guide:
        """`to_guide`, whose text is read when it is compiled."""
        if self.guide_type not in _WITH_SCHEMAS or self.guide is None:
            return self.to_guide()
        _, kind = _WITH_SCHEMAS[self.guide_type]
        return Guide.unread(kind, self.guide, strict=self.strict, open_objects=self.open_objects)


class GuidedDecodingBackend(ByName, Enum):
    """The grammar library that compiles guides. `AUTO` is weft's own: the one that enforces more of the guide at
    hand.
    """

    XGRAMMAR = 0
    LLGUIDANCE = 1
    AUTO = 100
    # And whatever else the registry has.
    _ignore_ = "members value library"
    members = vars()
    for value, library in enumerate(registry.names("grammars"), AUTO + 1):
        if library.upper() not in members:
            members[library.upper()] = value


class GuidedDecodingConfig(Settings):
    """Lets an executor take guided requests; without one they get an error response. Vocabulary and end tokens are
    those of the model's tokenizer, or else those given: `encoded_vocab`, each token as the tokenizer writes it, by id;
    `tokenizer_str`, the tokenizer's tokenizer.json as text, which says how tokens are written; and `stop_token_ids`,
    which end guided answers. weft's own: with `untrusted` guides come from strangers; they are compiled within
    tighter limits, and tried in another process before (`docs/untrusted.md`); a guide that takes longer than
    `mask_time_limit_s` seconds within one token ends its request (`weft.EngineConfig`; None: its default).
    `programs_ahead` and `max_program_bytes` bound WebAssembly programs that have started (`docs/wasm.md`): how many
    without a slot (None: as many as slots), and what all may hold together (None: 384 MiB for each of these and of the
    slots).
    """

    backend: GuidedDecodingBackend = GuidedDecodingBackend.AUTO
    encoded_vocab: Several[str] | None = None
    tokenizer_str: Text | None = None
    stop_token_ids: Several[NotNegative] | None = None
    untrusted: bool = False
    mask_time_limit_s: (
        Annotated[float, Within(Kind.NUMBER, 0, 1e6, "0 seconds (no limit) or more")] | None
    ) = None
    programs_ahead: Count | None = None
    max_program_bytes: Bytes | None = None

    GuidedDecodingBackend: ClassVar[type[GuidedDecodingBackend]] = GuidedDecodingBackend
