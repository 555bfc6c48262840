"""`DecodingMode`: TensorRT-LLM's setting for the sampling or speculation method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True)
class DecodingMode:
    """A decoding mode, made with `DecodingMode.TopKTopP()` and similar methods. `parts` names the methods that it
    combines."""

    name: str
    parts: frozenset[str]

    @staticmethod
    def Auto() -> DecodingMode:
        """The method that each request selects."""
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
        """Whether each request selects its method."""
        return "Auto" in self.parts

    def isTopK(self) -> bool:
        """Whether the mode uses top-k sampling."""
        return "TopK" in self.parts

    def isTopP(self) -> bool:
        """Whether the mode uses top-p sampling."""
        return "TopP" in self.parts

    def isTopKorTopP(self) -> bool:
        """Whether the mode uses top-k or top-p sampling."""
        return self.isTopK() or self.isTopP()

    def isTopKandTopP(self) -> bool:
        """Whether the mode uses both top-k and top-p sampling."""
        return self.isTopK() and self.isTopP()

    def isBeamSearch(self) -> bool:
        """Whether the mode is beam search."""
        return "BeamSearch" in self.parts

    def isMedusa(self) -> bool:
        """Whether the mode drafts with Medusa heads."""
        return "Medusa" in self.parts

    def isLookahead(self) -> bool:
        """Whether the mode drafts by lookahead decoding."""
        return "Lookahead" in self.parts

    def isExplicitDraftTokens(self) -> bool:
        """Whether the mode drafts with ReDrafter."""
        return "ExplicitDraftTokens" in self.parts

    def isEagle(self) -> bool:
        """Whether the mode drafts with an EAGLE head."""
        return "Eagle" in self.parts

    def useVariableBeamWidthSearch(self) -> bool:
        """Always False, because `SamplingConfig.beam_width_array` varies the width in any mode."""
        return False

    @property
    def drafts(self) -> bool:
        """Whether the mode is a method of speculation."""
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
