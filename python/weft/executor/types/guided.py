"""What answers must look like: `GuidedDecodingParams` of a request, `GuidedDecodingConfig` of an executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import ClassVar

from weft.errors import InputError
from weft.executor.types.checked import Checked
from weft.executor.types.fields import flag, instance, instance_parser, refused, required
from weft.grammar import Guide


class GuideType(IntEnum):
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


_MAKERS: dict[GuideType, Callable[[str], Guide]] = {
    GuideType.JSON_SCHEMA: Guide.json_schema,
    GuideType.REGEX: Guide.regex,
    GuideType.EBNF_GRAMMAR: Guide.ebnf,
    GuideType.STRUCTURAL_TAG: Guide.structural_tag,
    GuideType.LARK: Guide.lark,
}


@dataclass(eq=False)
class GuidedDecodingParams(Checked):
    """What one answer must look like: `guide` is the text of a JSON schema, a regular expression, a grammar in GBNF or
    Lark, or XGrammar's structural tag. `GuideType.JSON` (any JSON object or array) takes none.

    Whether the text is right shows when it is compiled: a guide that does not compile is the error of its request.
    Raises `InputError` where the text is missing.
    """

    guide_type: GuideType = field(metadata=required(instance_parser(GuideType)))
    guide: str | None = None

    GuideType: ClassVar[type[GuideType]] = GuideType

    def check(self) -> None:
        super().check()
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
        return _MAKERS[self.guide_type](self.guide)


class GuidedDecodingBackend(Enum):
    """The grammar library that compiles guides. `AUTO` is weft's own: XGrammar, and LLGuidance for what XGrammar can't
    express.
    """

    XGRAMMAR = 0
    LLGUIDANCE = 1
    AUTO = 100


@dataclass(eq=False)
class GuidedDecodingConfig(Checked):
    """Lets an executor take guided requests; without one they get an error response. Vocabulary and end tokens are
    those of the model's tokenizer. weft's own: with `untrusted` guides come from strangers; they are compiled within
    tighter limits, and tried in another process before (`docs/untrusted.md`).
    """

    backend: GuidedDecodingBackend = instance(GuidedDecodingBackend, default=GuidedDecodingBackend.AUTO)
    encoded_vocab: Sequence[str] | None = refused(
        "the vocabulary is read from the model's tokenizer; give the executor another tokenizer instead"
    )
    tokenizer_str: str | None = refused(
        "the vocabulary is read from the model's tokenizer; give the executor another tokenizer instead"
    )
    stop_token_ids: Sequence[int] | None = refused(
        "the model's own end tokens end guided answers; give a request's end_id for another"
    )
    untrusted: bool = flag(False)

    GuidedDecodingBackend: ClassVar[type[GuidedDecodingBackend]] = GuidedDecodingBackend
