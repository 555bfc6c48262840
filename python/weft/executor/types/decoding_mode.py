"""`DecodingMode`: TensorRT-LLM's setting of how tokens are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True)
class DecodingMode:
    """A way to choose tokens. Make one with `DecodingMode.TopKTopP()` and the like. `parts` are the methods it
    combines."""

    name: str
    parts: frozenset[str]

    @staticmethod
    def Auto() -> DecodingMode:
        """As requests select."""
        return _mode("Auto")

    @staticmethod
    def TopK() -> DecodingMode:
        """Top-k sampling."""
        return _mode("TopK")

    @staticmethod
    def TopP() -> DecodingMode:
        """Top-p sampling."""
        return _mode("TopP")

    @staticmethod
    def TopKTopP() -> DecodingMode:
        """Top-k and top-p sampling."""
        return _mode("TopKTopP", "TopK", "TopP")

    @staticmethod
    def BeamSearch() -> DecodingMode:
        """Beam search."""
        return _mode("BeamSearch")

    @staticmethod
    def Medusa() -> DecodingMode:
        """Medusa heads."""
        return _mode("Medusa")

    @staticmethod
    def Lookahead() -> DecodingMode:
        """Lookahead decoding."""
        return _mode("Lookahead")

    @staticmethod
    def ExplicitDraftTokens() -> DecodingMode:
        """ReDrafter."""
        return _mode("ExplicitDraftTokens")

    @staticmethod
    def Eagle() -> DecodingMode:
        """An EAGLE head."""
        return _mode("Eagle")

    def isAuto(self) -> bool:
        """Whether requests select the mode."""
        return "Auto" in self.parts

    def isTopK(self) -> bool:
        """Whether top-k is part of it."""
        return "TopK" in self.parts

    def isTopP(self) -> bool:
        """Whether top-p is part of it."""
        return "TopP" in self.parts

    def isTopKorTopP(self) -> bool:
        """Whether top-k or top-p is part of it."""
        return self.isTopK() or self.isTopP()

    def isTopKandTopP(self) -> bool:
        """Whether top-k and top-p are part of it."""
        return self.isTopK() and self.isTopP()

    def isBeamSearch(self) -> bool:
        """Whether it is beam search."""
        return "BeamSearch" in self.parts

    def isMedusa(self) -> bool:
        """Whether it drafts with Medusa heads."""
        return "Medusa" in self.parts

    def isLookahead(self) -> bool:
        """Whether it drafts by lookahead."""
        return "Lookahead" in self.parts

    def isExplicitDraftTokens(self) -> bool:
        """Whether it drafts with ReDrafter."""
        return "ExplicitDraftTokens" in self.parts

    def isEagle(self) -> bool:
        """Whether it drafts with an EAGLE head."""
        return "Eagle" in self.parts

    def useVariableBeamWidthSearch(self) -> bool:
        """Whether the mode sets a variable beam width: False; `ExecutorConfig.use_variable_beam_width_search` sets
        it."""
        return False

    @property
    def drafts(self) -> bool:
        """Whether it is a method of speculation."""
        return bool(self.parts & {"Medusa", "Lookahead", "ExplicitDraftTokens", "Eagle"})

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        by_name = core_schema.no_info_after_validator_function(named, core_schema.literal_schema([*NAMES]))
        return core_schema.json_or_python_schema(
            by_name,
            core_schema.is_instance_schema(cls),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda mode: mode.name),
        )


NAMES = (
    "Auto",
    "TopK",
    "TopP",
    "TopKTopP",
    "BeamSearch",
    "Medusa",
    "Lookahead",
    "ExplicitDraftTokens",
    "Eagle",
)


def named(name: str) -> DecodingMode:
    """The mode of this name."""
    mode: DecodingMode = getattr(DecodingMode, name)()
    return mode


def _mode(name: str, *parts: str) -> DecodingMode:
    return DecodingMode(name, frozenset(parts or (name,)))
